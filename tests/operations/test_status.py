"""Everyone is asked once for all runs, and what was heard once is not lost; a stand-in answers for Slurm."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.api import find, statuses
from clusterrun.model.document import encode
from clusterrun.model.errors import NoSuchRun, SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunState
from clusterrun.model.states import Phase, State
from clusterrun.operations.cancel import cancel
from clusterrun.operations.context import Context
from clusterrun.operations.wait import RunWait
from clusterrun.runs import private_files
from clusterrun.runs.private_files import DiskRefused
from clusterrun.runs.store import FORGOTTEN, run_id
from clusterrun.slurm.queries import JobRow
from tests.logs.test_follow import HandClock
from tests.operations.values import NOW, RECORD, row, state

# Runs of the same millisecond need different ids.
_NUMBERS = itertools.count()


class Slurm:
    """A Slurm that knows the rows it was given and counts the questions."""

    def __init__(
        self, *rows: JobRow, down: bool = False, accounted: Sequence[JobRow] = (), cluster: str = "here"
    ) -> None:
        self.rows = list(rows)
        self.cluster = cluster
        self.down = down
        self.accounted = tuple(accounted)
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def identity(self) -> str:
        return f"{self.cluster}@ctl"

    def requeue_exit(self) -> str:
        return ""

    def kill_wait(self) -> float:
        return 30.0

    def srun_ports(self) -> int:
        return 0

    def jobs(self) -> tuple[JobRow, ...]:
        self.asked.append("jobs")
        if self.down:
            raise SchedulerUnreachable("Slurm does not answer: timed out")
        return tuple(self.rows)

    def finished(self, ids: Sequence[str]) -> tuple[JobRow, ...]:
        self.asked.append(f"finished {','.join(ids)}")
        return tuple(job_row for job_row in self.accounted if job_row.job_id in ids)

    def find(self, token: str) -> str:
        return next((job_row.job_id for job_row in self.rows if token in job_row.comment), "")

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids
        self.rows = [
            replace(job_row, word="CANCELLED") if job_row.job_id in ids else job_row for job_row in self.rows
        ]


@pytest.fixture
def clock() -> HandClock:
    hand_clock = HandClock()
    hand_clock.time = NOW
    return hand_clock


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def context(tmp_path: Path, clock: HandClock, slurm: Slurm) -> Context:
    return Context({"CLUSTERRUN_HOME": str(tmp_path / "home")}, clock, slurm)  # type: ignore[arg-type]


def add(
    context: Context, job_id: str = "41", at: float = NOW, run_state: RunState | None = None, **changes: Any
) -> str:
    chosen = run_id("train", at, bytes(divmod(next(_NUMBERS), 32)))
    context.store.claim(chosen)
    context.store.save(replace(RECORD, **{"run_id": chosen, "job_id": job_id, **changes}))
    if run_state:
        tell(context, chosen, run_state)
    return chosen


def tell(context: Context, chosen: str, run_state: RunState) -> None:
    Path(context.store.paths(chosen).state).write_text(json.dumps(encode(replace(run_state, run_id=chosen))))


def test_one_query_answers_for_all_runs(context: Context, slurm: Slurm) -> None:
    for number in range(5):
        add(context, str(number), NOW + number)
        slurm.rows.append(row(job_id=str(number)))
    assert [s.state for s in statuses(context=context)] == [State.RUNNING] * 5
    assert slurm.asked == ["jobs"]


def test_runs_that_ended_well_need_no_question(context: Context, slurm: Slurm) -> None:
    add(context, run_state=state(State.COMPLETED))
    assert [s.state for s in statuses(context=context)] == [State.COMPLETED]
    assert slurm.asked == []


@pytest.mark.parametrize("by", ["requeue", "chain", ""])
@pytest.mark.parametrize("end", [State.FAILED, State.CANCELLED])
def test_an_ended_run_waits_again_if_its_job_was_requeued(
    context: Context, slurm: Slurm, clock: HandClock, end: State, by: str
) -> None:
    spec = replace(RECORD.spec, requeue=bool(by), requeue_by="chain" if by == "chain" else "")
    add(context, run_state=state(end, ended_at=NOW), spec=spec)
    slurm.rows = [row(end.value)]
    clock.time += 5
    assert [s.state for s in statuses(context=context)] == [end]
    before, slurm.rows = slurm.rows, [row("PENDING", reason="BeginTime")]
    clock.time += 5
    expected = State.PENDING if by == "requeue" else end
    assert [s.state for s in statuses(context=context)] == [expected]
    clock.time += 3600
    assert [s.state for s in statuses(context=context)] == [expected]
    slurm.rows = before
    clock.time += 5
    assert [s.state for s in statuses(context=context)] == [end]


def test_an_end_that_slurm_has_forgotten_keeps_its_reason(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    spec = replace(RECORD.spec, requeue=True)
    add(context, run_state=state(updated_at=NOW - 60), spec=spec)
    slurm.rows = [row("OUT_OF_MEMORY")]
    before = statuses(context=context)
    slurm.rows = []
    clock.time += 9
    after = statuses(context=context)
    assert [(s.state, s.reason) for s in before] == [(s.state, s.reason) for s in after]


def test_accounting_is_asked_only_for_jobs_that_left_the_queue(context: Context, slurm: Slurm) -> None:
    add(context, "41")
    add(context, "42", NOW + 1, token="other")
    slurm.rows = [row(job_id="42", comment="clusterrun:x:other")]
    slurm.accounted = (row("TIMEOUT", job_id="41"),)
    assert [s.state for s in statuses(context=context)] == [State.RUNNING, State.TIMEOUT]
    assert slurm.asked == ["jobs", "finished 41"]


def test_a_run_after_one_that_reached_its_time_limit_is_told_how_to_wait_for_any_end(
    context: Context, slurm: Slurm
) -> None:
    add(context, "41", run_state=state(State.TIMEOUT))
    spec = replace(RECORD.spec, after=("41",))
    second = add(context, "42", NOW + 1, spec=spec, token="other")
    slurm.rows = [
        row("CANCELLED", job_id="42", comment="clusterrun:x:other", reason="DependencyNeverSatisfied")
    ]
    reason = next(s.reason for s in statuses(context=context) if s.run_id == second)
    assert "was TIMEOUT" in reason and "dependency=afterany:41" in reason


def test_a_run_that_waits_for_others_names_those_that_have_not_ended(context: Context, slurm: Slurm) -> None:
    add(context, "40", run_state=state(State.COMPLETED))
    statuses(context=context)  # records the end
    first = add(context, "41", NOW + 1, token="first")
    spec = replace(RECORD.spec, after=("40", "41"))
    second = add(context, "42", NOW + 2, spec=spec, token="other")
    slurm.rows = [
        row(job_id="41", comment="clusterrun:x:first"),
        row("PENDING", job_id="42", comment="clusterrun:x:other", reason="Dependency"),
    ]
    reason = next(s.reason for s in statuses(context=context) if s.run_id == second)
    assert reason == f"waits for the end of {RECORD.name} ({first})"


NEWER = "clusterrun:newer:other"


@pytest.mark.parametrize(
    "queued, accounted",
    [
        ((row(comment=NEWER),), (row(comment=""),)),
        ((row("COMPLETED", comment=NEWER, nodelist=""),), (row("COMPLETED", comment=""),)),
        ((), (row("COMPLETED", comment=""),)),
        ((row(comment=""),), ()),  # a site that keeps no comments
    ],
    ids=["it runs", "it has ended", "it is forgotten", "no comments"],
)
def test_a_job_that_got_the_number_of_an_older_run_speaks_for_its_own_run_and_for_no_other(
    context: Context, slurm: Slurm, queued: tuple[JobRow, ...], accounted: tuple[JobRow, ...]
) -> None:
    older = add(context, at=NOW - 900, token="older", run_state=state(updated_at=NOW - 800))
    newer = add(context, token="other", run_state=state(State.COMPLETED) if not queued else state())
    slurm.rows, slurm.accounted = list(queued), accounted
    answers = {status.run_id: (status.state, status.reason) for status in statuses(context=context)}
    assert (answers[older][0], FORGOTTEN in answers[older][1]) == (State.FAILED, True)
    assert answers[newer][0] in (State.RUNNING, State.COMPLETED)
    cancel(context, [older], print)
    assert slurm.cancelled == []


def test_accounting_is_not_asked_for_a_number_of_another_users_job(context: Context, slurm: Slurm) -> None:
    """It knows the newest job of a number, and keeps no comments: this one bears the name of the run."""
    add(context, run_state=state(updated_at=NOW - 800))
    slurm.rows, slurm.accounted = [row(comment=NEWER)], (row("TIMEOUT", comment=""),)
    (status,) = statuses(context=context)
    assert (status.state, FORGOTTEN in status.reason) == (State.FAILED, True)
    assert slurm.asked == ["jobs"]


def test_a_controller_without_an_answer_is_reported_and_ends_no_run(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    slurm.down, messages = True, []
    add(context)
    assert [s.state for s in statuses(context=context, tell=messages.append)] == [State.UNKNOWN]
    assert messages == ["Slurm does not answer: timed out: the answer comes from the run directories"]
    slurm.down, slurm.rows = False, [row("FAILED")]
    clock.time += 10
    assert [s.state for s in statuses(context=context)] == [State.FAILED]


def test_a_controller_that_does_not_answer_leaves_its_older_news_with_their_age(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    add(context)
    slurm.rows, messages = [row("PENDING", reason="Priority")], []
    statuses(context=context)
    slurm.down, clock.time = True, NOW + 600
    (status,) = statuses(context=context, tell=messages.append)
    assert (status.state, status.reason) == (
        State.UNKNOWN,
        "Slurm does not answer; 10 min ago it reported PENDING"
        " (waits: jobs with a higher priority are ahead)",
    )
    assert "and from Slurm's answer 10 min ago" in messages[0]


def test_failing_accounting_is_reported_and_leaves_the_state_open(context: Context, slurm: Slurm) -> None:
    chosen = add(context)

    def fail(ids: Sequence[str]) -> tuple[JobRow, ...]:
        raise SchedulerError("sacct failed: Connection refused")

    slurm.finished, messages = fail, []  # type: ignore[method-assign]
    assert [s.state for s in statuses(context=context, tell=messages.append)] == [State.FAILED]
    assert "Connection refused" in messages[0] and context.store.ended(chosen) is None


def test_a_job_that_an_older_answer_lacks_is_asked_for_again(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    add(context, "41")
    slurm.rows = [row(job_id="41")]
    statuses(context=context)
    clock.time += 0.5
    add(context, "42", NOW + 1)
    slurm.rows.append(row("PENDING", job_id="42"))
    assert [s.state for s in statuses(context=context)] == [State.PENDING, State.RUNNING]
    assert slurm.asked == ["jobs", "jobs"]


def test_an_end_after_slurms_answer_is_asked_about(context: Context, slurm: Slurm, clock: HandClock) -> None:
    chosen = add(context, run_state=state(updated_at=NOW - 1))
    slurm.rows = [row()]
    statuses(context=context)
    clock.time += 1
    tell(context, chosen, state(State.PREEMPTED, updated_at=NOW + 0.5))
    slurm.rows = [row("PENDING")]
    assert [s.state for s in statuses(context=context)] == [State.PENDING]


def test_a_requeued_run_has_the_place_of_its_successor(context: Context, slurm: Slurm) -> None:
    run_state = state(State.PENDING, phase=Phase.QUEUED, reason="resubmitted as job 42 without n1")
    chosen = add(context, run_state=run_state)
    Path(context.store.paths(chosen).successor).write_text('{"job_id": "42"}')
    slurm.rows = [row("FAILED"), row("PENDING", job_id="42", reason="Priority")]
    (status,) = statuses(["42"], context)
    assert (status.run_id, status.job_id, status.state) == (chosen, "42", State.PENDING)
    assert status.reason.startswith("resubmitted as job 42 without n1; waits")
    cancel(context, [chosen], print)
    assert slurm.cancelled == ["42"]


def test_the_newest_warning_of_a_live_run_is_in_its_reason(context: Context, slurm: Slurm) -> None:
    add(context, run_state=state(updated_at=NOW, warnings=("a swap", "ranks never formed one group")))
    slurm.rows = [row()]
    assert statuses(context=context)[0].reason == "warning: ranks never formed one group (and 1 more)"


def test_a_run_that_ends_during_the_query_has_its_own_end(context: Context, slurm: Slurm) -> None:
    chosen = add(context, run_state=state(updated_at=NOW - 9))
    Path(context.store.paths(chosen).next).write_text('{"job_id": "42"}')

    def jobs() -> tuple[JobRow, ...]:
        # Its coordinator takes the next job of the chain back; of its own job nothing is known any more.
        tell(context, chosen, state(State.COMPLETED, phase=Phase.ENDED, exit_code=0, ended_at=NOW))
        return (row("CANCELLED", job_id="42"),)

    slurm.jobs = jobs  # type: ignore[method-assign]
    assert [(s.state, s.exit_code) for s in statuses(context=context)] == [(State.COMPLETED, 0)]


def test_a_coordinator_that_spoke_after_slurms_answer_is_believed(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context)
    slurm.rows = [row("PENDING")]
    statuses(context=context)
    clock.time += 1
    tell(context, chosen, state(updated_at=NOW + 0.9))
    assert [s.state for s in statuses(context=context)] == [State.RUNNING]


def test_a_run_deleted_during_the_listing_is_left_out(context: Context) -> None:
    present, deleted = add(context), add(context, at=NOW + 1)
    context.store.discard(deleted)
    assert [s.run_id for s in context.inquiry().statuses([deleted, present], skip_missing=True)] == [present]
    with pytest.raises(NoSuchRun):
        context.inquiry().statuses([deleted, present])


def test_slurm_answers_for_a_run_with_a_damaged_state(context: Context, slurm: Slurm) -> None:
    chosen = add(context)
    slurm.rows = [row("RUNNING")]
    Path(context.store.paths(chosen).state).write_text("{")
    status = find(chosen, context).status()
    assert status.state is State.RUNNING and "state.json is damaged" in status.reason


def test_a_damaged_last_word_is_found_out_again(context: Context, slurm: Slurm) -> None:
    chosen = add(context, run_state=state(State.COMPLETED))
    Path(context.store.paths(chosen).ended).write_text("{")
    assert find(chosen, context).state is State.COMPLETED


def test_forgotten_answers_of_slurm_are_stored(context: Context, slurm: Slurm, clock: HandClock) -> None:
    chosen = add(context, run_state=state(State.CANCELLED))
    slurm.rows = [row("TIMEOUT", end=NOW)]
    first = find(chosen, context).status()
    slurm.rows, clock.time = [], NOW + 86400
    assert [first.state, find(chosen, context).status()] == [State.TIMEOUT, first]
    assert context.store.current(0) == []


@pytest.mark.parametrize("later", ["Slurm is down", "Slurm has forgotten the jobs"])
def test_a_reported_end_of_a_chain_is_never_withdrawn(
    context: Context, slurm: Slurm, clock: HandClock, later: str
) -> None:
    """Job 41 was killed with its coordinator, and job 42, which waited for it, was cancelled and dropped."""
    chosen = add(context, run_state=state(updated_at=NOW - 9))
    following = Path(context.store.paths(chosen).next)
    following.write_text('{"job_id": "42"}')
    slurm.rows = [row("CANCELLED", end=NOW - 5), row("CANCELLED", job_id="42", nodelist="", end=NOW - 1)]
    first = find(chosen, context).status()
    assert (first.state, first.job_id) == (State.CANCELLED, "42")
    following.unlink()
    slurm.rows, slurm.down = [], later == "Slurm is down"
    shutil.rmtree(context.store.cache)
    clock.time += 3600
    second = find(chosen, context).status()
    assert (second.state, second.reason, second.ended_at) == (first.state, first.reason, first.ended_at)


def test_a_reported_end_of_a_chain_is_withdrawn_if_its_next_job_starts_after_all(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, run_state=state(updated_at=NOW - 9))
    slurm.rows = [row("NODE_FAIL", end=NOW - 5)]
    assert find(chosen, context).status().state is State.NODE_FAIL
    clock.time += 100
    Path(context.store.paths(chosen).successor).write_text('{"job_id": "42"}')
    tell(context, chosen, state(updated_at=clock.time - 1))
    slurm.rows = [row(job_id="42")]
    assert find(chosen, context).status().state is State.RUNNING


def test_a_full_disk_does_not_change_the_answer(
    context: Context, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(context, run_state=state(State.COMPLETED))

    def full(path: str, data: str, sync: bool = True) -> None:
        raise DiskRefused("no space left on device")

    monkeypatch.setattr(private_files, "write_whole", full)
    messages: list[str] = []
    assert [s.state for s in statuses(context=context, tell=messages.append)] == [State.COMPLETED]
    assert len(messages) == 1 and "could not be written: no space left" in messages[0]


def test_a_job_that_still_completes_is_not_settled_yet(context: Context, slurm: Slurm) -> None:
    chosen = add(context, run_state=state(State.CANCELLED))
    slurm.rows = [row("COMPLETING")]
    assert [find(chosen, context).state, context.store.ended(chosen)] == [State.CANCELLED, None]


def test_a_submission_whose_answer_was_lost_is_adopted_by_its_token(context: Context, slurm: Slurm) -> None:
    chosen = add(context, job_id="", token="deadbeef")
    slurm.rows = [row(job_id="77", comment=f"clusterrun:{chosen}:deadbeef")]
    assert find(chosen, context).status().job_id == "77"
    assert [context.store.read(chosen).job_id, context.store.find("77")] == ["77", chosen]


def test_a_submission_that_was_given_up_early_is_asked_for_again(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, job_id="")
    clock.time = NOW + 900
    assert find(chosen, context).state is State.FAILED
    context.store.save(replace(context.store.read(chosen), job_id="41"))
    clock.time += 3
    slurm.rows = [row("PENDING")]
    assert find(chosen, context).state is State.PENDING


def test_a_job_with_another_name_and_comment_is_matched_by_its_script(context: Context, slurm: Slurm) -> None:
    chosen = add(context, run_state=state(State.PENDING))
    slurm.rows = [row("PENDING", name="exp7", comment="VIP", command=context.store.paths(chosen).script)]
    assert find(chosen, context).state is State.PENDING


def test_another_users_comment_adopts_nothing(context: Context, slurm: Slurm) -> None:
    chosen = add(context, job_id="", token="deadbeef")
    slurm.rows = [row(job_id="77", comment="deadbee"), row(job_id="78", name=chosen, comment="")]
    assert find(chosen, context).status().job_id == ""


def test_a_damaged_run_is_shown_as_such_beside_the_others(context: Context) -> None:
    good = add(context, run_state=state(State.COMPLETED))
    bad = add(context, at=NOW + 1)
    Path(context.store.paths(bad).record).write_text("{")
    answers = {s.run_id: (s.state, s.reason) for s in statuses(context=context)}
    assert answers[good][0] is State.COMPLETED
    assert answers[bad][0] is State.UNKNOWN and "record.json is damaged" in answers[bad][1]


def test_a_damaged_state_is_reported_and_ends_no_run(context: Context) -> None:
    chosen = add(context)
    Path(context.store.paths(chosen).state).write_text("\0")
    status = find(chosen, context).status()
    assert status.state is State.UNKNOWN and "state.json is damaged" in status.reason


def test_an_unknown_selector_is_no_run(context: Context) -> None:
    with pytest.raises(NoSuchRun):
        statuses(["nothing"], context)


def test_cancel_writes_the_request_before_it_asks_slurm(context: Context, slurm: Slurm) -> None:
    chosen = add(context)
    slurm.rows = [row()]
    requests: list[bool] = []
    slurm.cancel = lambda ids: requests.append(context.store.cancel_asked(chosen)) or Slurm.cancel(slurm, ids)  # type: ignore[method-assign]
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.CANCELLED]
    assert [requests, slurm.cancelled] == [[True], ["41"]]


def test_cancel_sees_the_end_at_once_for_any_poll_interval(
    tmp_path: Path, slurm: Slurm, clock: HandClock
) -> None:
    environ = {"CLUSTERRUN_HOME": str(tmp_path / "home"), "CLUSTERRUN_SLURM_EVERY": "300"}
    context = Context(environ, clock, slurm)  # type: ignore[arg-type]
    chosen = add(context)
    slurm.rows = [row("PENDING")]
    statuses(context=context)
    clock.time += 1
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.CANCELLED]
    assert (clock.time, slurm.asked) == (NOW + 1, ["jobs", "jobs"])


def test_a_removed_working_directory_has_no_configuration_to_report(
    tmp_path: Path, slurm: Slurm, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    environ = {"CLUSTERRUN_HOME": str(tmp_path / "home")}
    context = Context(environ, clock, slurm, messages.append)  # type: ignore[arg-type]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    context.jobs()
    assert messages == []


def test_cancel_with_a_time_of_its_own_leaves_a_job_that_runs_to_its_coordinator_first(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, run_state=state(updated_at=NOW))
    slurm.rows = [row()]
    at: list[float] = []
    slurm.cancel = lambda ids: (ids and at.append(clock.time - NOW)) or Slurm.cancel(slurm, ids)  # type: ignore[method-assign]
    cancel(context, [chosen], print, kill_wait=100.0)
    assert json.loads(Path(context.store.paths(chosen).cancel).read_text()) == {"kill_wait": 100.0}
    assert len(at) == 1 and at[0] >= 100.0


def test_cancel_with_a_grace_time_removes_a_waiting_job_at_once(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context)
    slurm.rows = [row("PENDING")]
    cancel(context, [chosen], print, kill_wait=100.0)
    assert slurm.cancelled == ["41"] and clock.time < NOW + 100.0


def test_an_end_that_cut_a_save_has_it_in_the_reason(context: Context, slurm: Slurm) -> None:
    message = "rank 0 handled SIGTERM and was killed after 27 s, perhaps while saving"
    chosen = add(context, run_state=state(State.CANCELLED, reason=f"cancelled by request; {message}"))
    context.store.ask_cancel(chosen)
    slurm.rows = [row("CANCELLED")]
    assert find(chosen, context).status().reason == f"by clusterrun cancel; {message}"


def test_cancel_finds_the_job_of_a_lost_answer(context: Context, slurm: Slurm) -> None:
    chosen = add(context, job_id="", token="deadbeef")
    slurm.rows = [row(job_id="77", comment="clusterrun:x:deadbeef")]
    cancel(context, [chosen], print)
    assert slurm.cancelled == ["77"]


def test_cancel_does_not_change_an_ended_run(context: Context, slurm: Slurm) -> None:
    chosen = add(context, run_state=state(State.COMPLETED))
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.COMPLETED]
    assert [slurm.cancelled, context.store.cancel_asked(chosen)] == [[], False]


def test_the_coordinator_ends_a_live_run_while_the_controller_is_silent(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, run_state=state(updated_at=NOW))
    slurm.down = True

    def refuse(ids: Sequence[str]) -> None:
        raise SchedulerUnreachable("Slurm does not answer")

    slurm.cancel = refuse  # type: ignore[method-assign]
    clock.acts = [lambda: tell(context, chosen, state(State.CANCELLED))]
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.CANCELLED]


def test_a_queued_run_cannot_be_cancelled_while_the_controller_is_silent(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context)
    slurm.down = True

    def refuse(ids: Sequence[str]) -> None:
        raise SchedulerUnreachable("Slurm does not answer")

    slurm.cancel = refuse  # type: ignore[method-assign]
    with pytest.raises(SchedulerUnreachable):
        cancel(context, [chosen], print)
    assert clock.time == NOW


def test_cancel_stops_waiting_at_its_limit_and_reports_the_rest(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context)
    slurm.rows = [row()]
    slurm.cancel = lambda ids: None  # type: ignore[method-assign]
    messages: list[str] = []
    assert [s.state for _, s in cancel(context, [chosen], messages.append)] == [State.RUNNING]
    assert messages == [f"waiting for {chosen} to end, at most 60 s"]


def test_waiting_asks_the_scheduler_seldom_and_the_run_often(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context)
    slurm.rows = [row("PENDING", reason="Priority")]

    def start() -> None:
        tell(context, chosen, state(updated_at=clock.time))

    def finish() -> None:
        slurm.rows = [row("COMPLETED")]
        tell(context, chosen, state(State.COMPLETED, updated_at=clock.time))

    clock.acts = [*[lambda: None] * 250, *[start] * 250, finish]
    messages: list[str] = []
    status = RunWait(context, chosen, messages.append).wait(None)
    assert status.state is State.COMPLETED
    assert len(slurm.asked) <= 10
    assert messages[0].startswith(f"waiting for train ({chosen}, job 41) to end; it is queued: ")
    assert messages[-1].endswith("it is training")


def test_waiting_ends_at_its_limit(context: Context, slurm: Slurm, clock: HandClock) -> None:
    chosen = add(context)
    slurm.rows = [row("PENDING")]
    status = RunWait(context, chosen, lambda _: None).wait(10.0)
    assert (status.state, round(clock.time - NOW)) == (State.PENDING, 10)


def test_a_time_limit_that_slurm_names_late_is_waited_for(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, run_state=state(State.CANCELLED))
    slurm.rows = [row("COMPLETING")]

    def name_it() -> None:
        slurm.rows = [row("TIMEOUT")]

    clock.acts = [*[lambda: None] * 6, name_it]
    assert RunWait(context, chosen, lambda _: None).wait(None).state is State.TIMEOUT


def test_a_coordinator_that_spoke_while_slurm_was_waited_for_in_vain_is_believed(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, run_state=state(State.RUNNING, updated_at=NOW))
    answers = [lambda: (row(),)]
    slurm.jobs = lambda: answers.pop(0)()  # type: ignore[method-assign]
    assert [answer.state for answer in statuses(context=context)] == [State.RUNNING]

    def waits() -> tuple[JobRow, ...]:
        clock.time = NOW + 95.0
        tell(context, chosen, state(State.RUNNING, updated_at=NOW + 90.0))
        raise SchedulerUnreachable("Slurm does not answer: squeue gave no answer within 30 s")

    clock.time = NOW + 65.0
    answers.append(waits)
    (status,) = statuses(context=context)
    assert status.state is State.RUNNING and "last word" not in status.reason


class Clusters:
    """One home and two clusters, A and B, each with a context. Both contexts see the same runs."""

    def __init__(self, home: Path, clock: HandClock) -> None:
        self.clock = clock
        self.a, self.b = Slurm(cluster="a"), Slurm(cluster="b")
        environ = {"CLUSTERRUN_HOME": str(home)}
        self.on_a = Context({**environ, "SLURM_CONF": "/a"}, clock, self.a)  # type: ignore[arg-type]
        self.on_b = Context({**environ, "SLURM_CONF": "/b"}, clock, self.b)  # type: ignore[arg-type]


@pytest.fixture
def clusters(tmp_path: Path, clock: HandClock) -> Clusters:
    return Clusters(tmp_path / "home", clock)


@pytest.mark.parametrize("comment", ["", f"clusterrun:{RECORD.run_id}:token"])
@pytest.mark.parametrize(
    "word, spoken, seen_on_b",
    [
        ("PENDING", None, State.UNKNOWN),
        ("RUNNING", 1.0, State.RUNNING),
        ("RUNNING", 400.0, State.UNKNOWN),
        ("RUNNING", None, State.UNKNOWN),
    ],
)
def test_another_clusters_slurm_ends_no_run_and_none_of_its_jobs_is_the_runs(
    clusters: Clusters, word: str, spoken: float | None, seen_on_b: State, comment: str
) -> None:
    run_state = state(updated_at=NOW - spoken) if spoken is not None else None
    chosen = add(clusters.on_a, run_state=run_state, slurm="a@ctl")
    clusters.a.rows = [row(word, comment=comment)]
    clusters.b.rows = [row("FAILED", comment="")]  # of the same number and name
    clusters.b.accounted = (row("FAILED", comment=""),)
    before = find(chosen, clusters.on_a).state
    (on_b,) = statuses([chosen], clusters.on_b)
    assert (on_b.state, "cluster a" in on_b.reason) == (seen_on_b, seen_on_b is State.UNKNOWN)
    assert clusters.on_b.store.ended(chosen) is None
    clusters.clock.time += 3
    assert find(chosen, clusters.on_a).state is before is State[word]


def test_a_run_is_cancelled_on_its_own_cluster_and_refused_elsewhere(clusters: Clusters) -> None:
    chosen = add(clusters.on_a, slurm="a@ctl")
    clusters.a.rows = [row("PENDING")]
    clusters.b.rows = [row("RUNNING", comment="")]
    asked_at = clusters.clock.monotonic()
    with pytest.raises(SchedulerError) as raised:
        cancel(clusters.on_b, [chosen], print)
    assert clusters.clock.monotonic() == asked_at, "nobody who could end it is waited for"
    assert raised.value.seen == f"{chosen} is not ended: its jobs are on the cluster a"
    assert clusters.b.cancelled == [] and clusters.on_b.store.cancel_asked(chosen)
    assert [s.state for _, s in cancel(clusters.on_a, [chosen], print)] == [State.CANCELLED]
    assert clusters.a.cancelled == ["41"]


def test_a_coordinator_that_hears_the_word_ends_its_run_from_another_cluster_too(clusters: Clusters) -> None:
    chosen = add(clusters.on_a, run_state=state(updated_at=NOW), slurm="a@ctl")
    clusters.clock.acts = [lambda: tell(clusters.on_b, chosen, state(State.CANCELLED))]
    assert [s.state for _, s in cancel(clusters.on_b, [chosen], print)] == [State.CANCELLED]


def test_a_heartbeat_outranks_the_silence_of_a_queue(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context, run_state=state(updated_at=NOW - 1))
    assert find(chosen, context).state is State.RUNNING
    clock.time += 60
    assert find(chosen, context).state is State.FAILED


@pytest.mark.parametrize("word", ["PENDING", "RUNNING"])
def test_an_inferred_end_is_withdrawn_if_the_queue_has_the_job(
    context: Context, slurm: Slurm, clock: HandClock, word: str
) -> None:
    chosen = add(context)
    assert find(chosen, context).state is State.FAILED and context.store.ended(chosen) is not None
    clock.time += 3600
    slurm.rows = [row(word, start=None)]
    assert find(chosen, context).state is State[word]
    assert context.store.ended(chosen) is None and context.store.current(0) == [chosen]


def test_an_inferred_end_is_written_once_and_checked_for_a_day(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = add(context)
    first = find(chosen, context).status()
    clock.time += 3600
    second = find(chosen, context).status()
    assert (second.state, second.reason, second.ended_at) == (first.state, first.reason, first.ended_at)
    noted = context.store.ended(chosen)
    assert noted is not None and noted.at == NOW
    assert slurm.asked.count("finished 41") == 1
    clock.time += 86400
    queries = len(slurm.asked)
    assert find(chosen, context).status() == first and len(slurm.asked) == queries
