"""How points become arrays: as long as Slurm takes them, once, found again where its answer was lost."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from clusterrun.executor import ClusterrunExecutor
from clusterrun.model.errors import BadInput, SchedulerError
from clusterrun.model.frozen import replace
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context, quiet
from clusterrun.operations.sweep import _ArrayQueue, new_sweep, start, unqueued
from clusterrun.runs.sweep_records import SweepRecord, Sweeps
from clusterrun.system import RealClock

SBATCH = """#!/bin/sh
echo "$*" >> "$HOME/asked"
for word; do case $word in --array=*) range=${word#--array=};; esac; done
range=${range%%%*}
count=$((${range#*-} - ${range%-*} + 1))
taken=$(cat "$HOME/taken" 2>/dev/null || echo 0)
if [ $((taken + count)) -gt "$(cat "$HOME/limit")" ]; then
  echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2
  exit 1
fi
echo $((taken + count)) > "$HOME/taken"
echo $((40 + taken))
"""


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=test\nMaxArraySize=4\n")
    return Context(
        {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "CLUSTERRUN_HOME": str(tmp_path / "home"),
            "SLURM_CONF": str(tmp_path / "slurm.conf"),
        }
    )


def sweep(context: Context, count: int, limit: int, at_most: int = 0) -> SweepRecord:
    home = Path(context.environ["HOME"])
    (home / "limit").write_text(str(limit))
    spec = JobSpec(("true", "{n}"), str(home), name="t", cluster=Cluster.SLURM, preflight="off")
    record = new_sweep(spec, [(("n", str(number)),) for number in range(count)], at_most, context)
    return start(record, context, quiet, patient=False)


def array_options(context: Context) -> list[str]:
    """Return the options of each array that sbatch got, in turn, with the dependencies."""
    lines = (Path(context.environ["HOME"]) / "asked").read_text().splitlines()
    return [match[0] for line in lines if (match := re.search(r"--array=\S+", line))]


def test_a_sweep_has_the_whole_name_that_its_user_chose(context: Context) -> None:
    spec = JobSpec(("true", "{n}"), context.environ["HOME"], name="n" * 60)
    assert new_sweep(spec, [(("n", "1"),)], 0, context).name == "n" * 60


def test_a_sweep_is_split_at_the_array_limit_and_the_parts_wait_in_order(context: Context) -> None:
    sweep_record = sweep(context, 9, 100, at_most=2)
    assert array_options(context) == ["--array=0-3%2", "--array=0-3%2", "--array=0%2"]
    records = [context.store.read(run_id) for run_id in sweep_record.run_ids]
    numbers = ["40_0", "40_1", "40_2", "40_3", "44_0", "44_1", "44_2", "44_3", "48_0"]
    assert [record.job_id for record in records] == numbers
    assert [record.point for record in records] == [f"n={number}" for number in range(9)]
    assert len({record.token for record in records}) == 9
    scripts = sorted(Path(Sweeps(context.store).paths(sweep_record.sweep_id).run_dir).glob("array-*.sh"))
    waits = re.findall(r"afterany:\d+", "".join(script.read_text() for script in scripts))
    assert sorted(waits) == ["afterany:40", "afterany:44"]


def test_a_job_limit_is_filled_and_refused_points_leave_no_run(context: Context) -> None:
    record = sweep(context, 9, 3)
    assert array_options(context)[:2] == ["--array=0-3", "--array=0-1"]
    assert (len(record.run_ids), record.waiting) == (3, [3, 4, 5, 6, 7, 8])
    assert sorted(context.store.ids()) == sorted(record.run_ids)
    assert Sweeps(context.store).read(record.sweep_id) == record
    (Path(context.environ["HOME"]) / "limit").write_text("100")
    assert start(record, context, quiet, patient=False).waiting == []


def test_a_point_that_is_queued_later_has_the_index_that_it_has_in_the_whole_sweep(context: Context) -> None:
    record = sweep(context, 4, 2)
    (Path(context.environ["HOME"]) / "limit").write_text("100")
    run_ids = start(record, context, quiet, patient=False).run_ids
    assert array_options(context)[-1] == "--array=2-3"
    assert [context.store.read(run_id).job_id for run_id in run_ids] == ["40_0", "40_1", "42_2", "42_3"]


def test_a_point_above_the_array_limit_keeps_its_index_when_it_is_queued_again(context: Context) -> None:
    (Path(context.environ["HOME"]) / "limit").write_text("100")
    record = sweep(context, 9, 100)
    listed = [
        replace(point, run_id="") if place in (3, 6, 7) else point
        for place, point in enumerate(record.points)
    ]
    messages: list[str] = []
    start(replace(record, points=tuple(listed)), context, messages.append, patient=False)
    assert array_options(context)[-2:] == ["--array=3", "--array=2-3"]
    assert any("SLURM_ARRAY_TASK_ID begins at 0 again with point 4" in message for message in messages)


def test_a_job_limit_of_zero_is_an_error_with_slurms_message(context: Context) -> None:
    with pytest.raises(SchedulerError, match="QOSMaxSubmitJobPerUserLimit"):
        sweep(context, 3, 0)
    assert context.store.ids() == []


def test_an_array_without_a_received_number_is_recognised_by_its_comment(context: Context) -> None:
    home = Path(context.environ["HOME"])
    (home / "squeue").write_text(
        "#!/bin/sh\nfor word; do case $word in --format=*) form=${word#--format=};; esac; done\n"
        'mark="clusterrun:s:$(cat $HOME/token)"\n'
        'printf %s "$form" | sed "s/%i/41_[0-2]/;s/%T/PENDING/;s/%k/$mark/;s/%./ /g"\n'
    )
    (home / "squeue").chmod(0o755)
    (home / "sbatch").write_text(
        '#!/bin/sh\ngrep -oh "clusterrun:[^ \\"]*" "$HOME"/home/sweeps/*/array-*.sh | cut -d: -f3 | head -1'
        ' > "$HOME/token"\necho "sbatch: error: Batch job submission failed: Socket timed out" >&2\nexit 1\n'
    )
    record = sweep(context, 3, 9)
    assert [context.store.read(run_id).job_id for run_id in record.run_ids] == ["41_0", "41_1", "41_2"]
    assert os.path.exists(home / "token")


def test_calls_that_a_limit_holds_back_are_queued_as_others_end_and_none_is_lost(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = Path(context.environ["HOME"])
    (home / "limit").write_text("3")
    executor = ClusterrunExecutor(context=context, preflight="off", cluster="slurm")

    def room(_: object) -> int:
        (home / "limit").write_text("100")
        return 2

    monkeypatch.setattr("clusterrun.operations.sweep._ArrayQueue._room", room)
    jobs = executor.map_array(abs, range(7))
    assert [job.submission().args for job in jobs] == [(number,) for number in range(7)]
    assert array_options(context)[-2:] == ["--array=0-1", "--array=2"]
    assert "3 calls are queued; a limit on your jobs holds 4 back" in caplog.text


def test_unknown_calls_are_not_queued_as_runs_without_one(context: Context) -> None:
    (Path(context.environ["HOME"]) / "limit").write_text("3")
    spec = JobSpec(("true",), context.environ["HOME"], name="t", cluster=Cluster.SLURM, preflight="off")
    files = [[("call.pkl", b"x")]] * 5
    record = start(new_sweep(spec, [()] * 5, 0, context), context, quiet, files, patient=False)
    with pytest.raises(BadInput, match="2 calls of t were known only to the program"):
        start(record, context, quiet)


class Killed(BaseException):
    """In place of SIGKILL: nothing of the command runs after it."""


class JumpingClock(RealClock):
    """Each sleep is over at once, and takes as long as it should by this clock."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> float:
        return super().now() + self.slept

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def killed_at(what: str, context: Context, monkeypatch: pytest.MonkeyPatch) -> SweepRecord:
    """Return a sweep of three points whose client was killed at ``what``. squeue shows no job."""
    home = Path(context.environ["HOME"])
    (home / "squeue").write_text("#!/bin/sh\nexit 0\n")
    (home / "squeue").chmod(0o755)

    def killed(*_: object) -> str:
        raise Killed

    keep = _ArrayQueue._keep
    with monkeypatch.context() as patched:
        patched.setattr(what, killed)
        # A killed process takes nothing back.
        patched.setattr(
            _ArrayQueue,
            "_keep",
            lambda self, runs, job="": keep(self, runs, job) if any(runs.values()) else None,
        )
        patched.setattr(context.store, "discard", lambda _: None)
        with pytest.raises(Killed):
            sweep(context, 3, 9)
    (record,) = map(Sweeps(context.store).read, Sweeps(context.store).ids())
    assert (len(record.run_ids), record.waiting) == (3, [])
    return record


def test_points_of_a_client_killed_before_its_request_are_queued_at_once(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = killed_at("clusterrun.operations.sweep._ArrayQueue._send", context, monkeypatch)
    context.clock = JumpingClock()
    again = unqueued(record, context, quiet)
    assert (again.waiting, context.clock.slept, context.store.ids()) == ([0, 1, 2], 0.0, [])
    assert Sweeps(context.store).read(record.sweep_id) == again
    queued = start(again, context, quiet, patient=False)
    assert array_options(context) == ["--array=0-2"]
    assert unqueued(queued, context, quiet) == queued


def test_requested_points_are_queued_again_only_after_their_submission_is_lost(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = killed_at("clusterrun.operations.submit.sent", context, monkeypatch)
    context.clock = JumpingClock()
    lines: list[str] = []
    again = unqueued(record, context, lines.append)
    assert again.waiting == [0, 1, 2]
    assert [point.earlier for point in again.points] == [(run_id,) for run_id in record.run_ids]
    assert context.clock.slept > 290
    assert len(lines) == 1 and "Slurm was asked for 3 points" in lines[0]


def test_a_client_whose_points_were_taken_over_sends_no_request(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = _ArrayQueue._send
    others: list[SweepRecord] = []

    def overtaken(self: _ArrayQueue, argv: tuple[str, ...], token: str) -> str:
        if not others:
            others.append(unqueued(self._sweep, context, quiet))
        return send(self, argv, token)

    home = Path(context.environ["HOME"])
    (home / "squeue").write_text("#!/bin/sh\nexit 0\n")
    (home / "squeue").chmod(0o755)
    monkeypatch.setattr(_ArrayQueue, "_send", overtaken)
    with pytest.raises(SchedulerError, match="has taken over the points"):
        sweep(context, 3, 9)
    assert not (home / "asked").exists()
    assert start(others[0], context, quiet, patient=False).waiting == []
    assert array_options(context) == ["--array=0-2"]
