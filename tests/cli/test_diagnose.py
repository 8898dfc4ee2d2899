"""`clusterrun diagnose` as a user types it: live runs, ended runs, and what cannot be asked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterrun.cli.diagnose import lines
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Stacks, Verdict
from tests.cli.conftest import CommandLine
from tests.coordinator.runs import until

SCRIPT = """
import os, sys, time
rank = int(os.environ["RANK"])

def step():
    if "raise" in sys.argv and rank == 1:
        raise ValueError("the data are bad")
    if "missing" in sys.argv:
        import a_package_that_is_nowhere
    if "kill" in sys.argv and rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(0 if "end" in sys.argv else 600)

print("up", flush=True)
step()
"""


def script(context: CommandLine) -> None:
    (context.folder / "train.py").write_text(SCRIPT)


def run_dir(context: CommandLine) -> Path:
    """Return the newest run directory."""
    runs = Path(context.environment["CLUSTERRUN_HOME"]) / "runs"
    return runs / sorted(os.listdir(runs))[-1]


def await_rest(context: CommandLine) -> None:
    """Wait until both ranks sleep. A rank that has printed "up" still runs for a moment."""
    until(lambda: json.loads(context("diagnose", "--json").out)["verdict"] == "all wait", "their rest", 60)


@pytest.fixture(scope="module")
def waiting(
    make_context: Callable[[Path], CommandLine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandLine]:
    """Yield a run of two waiting ranks, shared by tests that read it."""
    context = make_context(tmp_path_factory.mktemp("waiting"))
    script(context)
    context("submit", "--nodes", "2", "--ranks-per-node", "1", "train.py")
    folder = run_dir(context)
    until(
        lambda: (
            all((folder / f"attempts/000/0000{rank}.out").exists() for rank in (0, 1))
            and all((folder / f"attempts/000/0000{rank}.out").read_text() == "up\n" for rank in (0, 1))
        ),
        "both ranks",
        60,
    )
    until(lambda: json.loads((folder / "state.json").read_text())["phase"] == "training", "the state", 60)
    await_rest(context)
    yield context
    context("cancel", "last")


def test_a_live_run_is_looked_into_and_leaves_no_question_behind(waiting: CommandLine) -> None:
    folder = run_dir(waiting)
    result = waiting("diagnose", "--json")
    document = json.loads(result.out)
    assert result.code == 0, result
    assert (document["verdict"], document["culprits"]) == ("all wait", [])
    message = "all 2 ranks wait outside of collectives, all at train.py:12 (step)"
    assert document["message"] == document["said"] == message
    (group,) = document["groups"]
    assert group["ranks"] == [0, 1]
    assert group["stack"][0] == f"{waiting.folder}/train.py:12 step"
    assert (os.listdir(folder / "asks"), list((folder / "attempts/000").glob("diagnose*"))) == ([], [])


def test_the_text_shows_the_verdict_first_and_the_users_own_lines(waiting: CommandLine) -> None:
    lines = waiting("diagnose").out.split("\n")
    assert lines[0] == "all wait: all 2 ranks wait outside of collectives, all at train.py:12 (step)"
    assert lines[1:6] == ["", "certainty", "  little is known", "", "evidence"]
    assert '      train.py:12 (step)   time.sleep(0 if "end" in sys.argv else 600)' in lines
    assert "  2 ranks: 0-1" in lines


def test_culprits_with_one_reason_share_a_line_that_does_not_repeat_the_first_line() -> None:
    first, stopped = "ranks 0-2 failed: KeyError: 'x'", "it is stopped"
    nodes = {0: "n0", 1: "n0", 2: ""}
    failed = [Culprit(rank, node, "KeyError: 'x'") for rank, node in nodes.items()]
    culprits = (*failed, Culprit(3, "n1", stopped), Culprit(4, "n2", stopped))
    shown = lines(Diagnosis(Verdict.CRASHED, first, culprits))
    assert shown[2:] == [
        "culprits",
        "  ranks 0-1 on n0",
        "  rank 2",
        "  ranks 3-4 on n[1-2]: each is stopped",
    ]


def test_the_certainty_is_shown_unless_nothing_is_wrong() -> None:
    for verdict, is_shown in ((Verdict.UNDETERMINED, True), (Verdict.NOTHING, False)):
        assert ("certainty" in lines(Diagnosis(verdict, "rank 1 is busy", certainty=60))) == is_shown


def test_frames_of_the_import_system_are_left_out_of_the_page() -> None:
    imports = tuple(f"<frozen importlib._bootstrap>:{line} _find_and_load" for line in range(20))
    stacks = Stacks("0", (*imports, "/home/me/own.py:1 <module>"))
    shown = lines(Diagnosis(Verdict.NOTHING, "the ranks are making progress", (), (stacks,)))
    assert shown[2:] == ["stacks", "  rank 0", "      own.py:1"]


def test_the_frames_of_the_script_are_shown_before_those_of_libraries() -> None:
    inner = tuple(f"/venv/lib/python3.12/site-packages/torch/x.py:{line} wait" for line in range(9))
    outer = "/venv/lib/python3.12/site-packages/lightning/y.py:1 fit"
    stack = (*inner, "/home/me/own.py:5 step", outer, "/home/me/own.py:9 <module>")
    shown = lines(Diagnosis(Verdict.NOTHING, "the ranks are making progress", (), (Stacks("0", stack),)))
    assert shown[4:] == [
        *(f"      x.py:{line} (wait)" for line in range(6)),
        *("      … 3 more", "      own.py:5 (step)", "      … 1 more", "      own.py:9"),
    ]


def test_a_rank_that_is_stopped_is_named_by_its_node(waiting: CommandLine) -> None:
    (stopped,) = [int(p) for p in os.listdir("/proc") if p.isdigit() and _is_rank(p, "1", waiting)]
    os.kill(stopped, signal.SIGSTOP)
    try:
        document = json.loads(waiting("diagnose", "--json").out)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert document["culprits"] == [{"rank": 1, "node": "local-1", "why": "it is stopped (SIGSTOP)"}]


def _is_rank(pid: str, rank: str, context: CommandLine) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    home = f"CLUSTERRUN_RUN_DIR={run_dir(context)}".encode()
    return f"RANK={rank}".encode() in environ and home in environ and b"train.py" in argv


def test_a_coordinator_that_does_not_answer_is_reported(waiting: CommandLine) -> None:
    folder = run_dir(waiting)
    pid = json.loads((folder / "state.json").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        result = waiting("diagnose", "--limit", "3s")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert result.code == 1
    assert result.out.startswith("undetermined: the run gave no answer within 3 s")
    assert "--limit 40s" in result.out
    assert "waiting for the observers" in result.err
    assert os.listdir(folder / "asks") == []


def test_a_failed_run_is_explained_by_its_first_error(clusterrun: CommandLine) -> None:
    script(clusterrun)
    ended = clusterrun("submit", "--nodes", "2", "--ranks-per-node", "1", "--wait", "train.py", "raise")
    assert ended.code == 1
    assert "  why     rank 1 on local-1 failed first\n" in ended.err
    assert "          rank 1: ValueError: the data are bad, at train.py:7 (step)\n" in ended.err
    assert "  a rank printed an error before the others\n" in clusterrun("diagnose").out
    document = json.loads(clusterrun("diagnose", "--json").out)
    why = "ValueError: the data are bad, at train.py:7 (step)"
    assert (document["verdict"], document["certainty"]) == ("crashed", 60)
    assert document["culprits"] == [{"rank": 1, "node": "local-1", "why": why}]
    assert document["evidence"] == [f"rank 1: {why}"]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ("sys.exit('no checkpoint in /data')", "rank 1 printed last: no checkpoint in /data"),
        (
            "print('early', file=sys.stderr, flush=True); time.sleep(2); print('no data'); sys.exit(5)",
            "rank 1 printed last: no data",
        ),
    ],
)
def test_the_error_that_a_rank_prints_is_reported(ends: str, message: str, clusterrun: CommandLine) -> None:
    begins = 'import os, sys, time\nif os.environ["RANK"] == "1":\n    '
    (clusterrun.folder / "train.py").write_text(f"{begins}{ends}\ntime.sleep(600)\n")
    ended = clusterrun("submit", "--nodes", "2", "--ranks-per-node", "1", "--wait", "train.py")
    assert message in ended.err
    assert "printed nothing" not in ended.err


LATE = """
import os, sys, time
def wait_for_license(): time.sleep(600)
if os.environ["RANK"] == "1": wait_for_license()
print("up", flush=True)
time.sleep(1)
said = "Timed out after 1 seconds waiting for clients. 1/2 clients joined."
sys.exit(f"torch.distributed.DistStoreError: {said}")
"""


def test_a_rank_for_which_the_others_timed_out_is_named_with_its_line(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "train.py").write_text(LATE)
    clusterrun("submit", "--nodes", "2", "--ranks-per-node", "1", "--wait", "train.py")
    document = json.loads(clusterrun("diagnose", "--json").out)
    (culprit,) = document["culprits"]
    assert (document["verdict"], culprit["rank"]) == ("rank never arrived", 1)
    assert culprit["why"].endswith("when it was asked to end, it was at train.py:3 (wait_for_license)")
    retained = json.loads((run_dir(clusterrun) / "attempts/000/node-0001.stacks").read_text())
    assert retained["1"]["stack"][0] == f"{clusterrun.folder}/train.py:3 wait_for_license"


HANGING = """
import logging, os, time
if os.environ["RANK"] == "1":
    logging.warning("skipping the batch: CUDA out of memory")
print("up", flush=True)
time.sleep(600)
"""


def test_a_hang_explains_a_cancelled_run_better_than_an_error_that_its_rank_survived(
    clusterrun: CommandLine,
) -> None:
    (clusterrun.folder / "train.py").write_text(HANGING)
    clusterrun("submit", "--nodes", "2", "--ranks-per-node", "1", "train.py")
    attempt = run_dir(clusterrun) / "attempts/000"
    logs = [attempt / f"0000{rank}.out" for rank in (0, 1)]
    until(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs), "both ranks", 60)
    clusterrun("cancel", "last")
    hang = {"verdict": "mismatch", "message": "ranks called different collectives", "certainty": 80}
    (attempt / "diagnosis.json").write_text(json.dumps(hang))
    (attempt / "diagnosis.json").chmod(0o600)
    assert clusterrun("diagnose").out.startswith("mismatch: ranks called different collectives\n")


def test_a_known_message_is_explained_with_its_remedy(clusterrun: CommandLine) -> None:
    script(clusterrun)
    ended = clusterrun("submit", "--ranks-per-node", "2", "--wait", "train.py", "missing")
    assert "a package is missing in the ranks' Python" in ended.err
    assert "  remedy  install it there" in ended.err


def test_a_remedy_names_the_run_since_a_newer_one_may_exist(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "train.py").write_text("import sys\nprint('up')\nsys.exit(int(sys.argv[1]))\n")
    failed = clusterrun("submit", "--wait", "train.py", "3")
    clusterrun("submit", "--wait", "train.py", "0")
    for ended in (failed.err, clusterrun("diagnose", failed.out.strip()).out):
        assert f"clusterrun logs {failed.out.strip()} --rank 0" in ended


def test_a_run_that_ended_well_has_nothing_wrong(ended: CommandLine) -> None:
    assert ended("diagnose").out == "nothing wrong: the run ended well\n"
    assert ended("diagnose", "--user", "bob").code == 2  # a run is not of another user


def test_an_unknown_run_and_a_damaged_state_are_errors(clusterrun: CommandLine) -> None:
    assert clusterrun("diagnose", "nowhere").code == 5
    script(clusterrun)
    clusterrun("submit", "--wait", "train.py", "end")
    (run_dir(clusterrun) / "state.json").write_text("{")
    result = clusterrun("diagnose")
    assert (result.code, result.out) == (1, "")
    assert "is damaged" in result.err


def test_damaged_files_of_ranks_are_ignored(clusterrun: CommandLine) -> None:
    script(clusterrun)
    clusterrun("submit", "--ranks-per-node", "2", "--wait", "train.py", "raise")
    attempt = run_dir(clusterrun) / "attempts/000"
    (attempt / "00000.farewell.json").write_text('{"alone": 3, "groups": 7, "records": [{}]}')
    (attempt / "00001.farewell.json").write_bytes(b"\xff\x00{")
    (attempt / "99999999.farewell.json").write_text("[]")
    (attempt / "diagnosis.json").write_text('{"verdict": "no such word"}')
    (attempt / "diagnosis.json").chmod(0o600)  # others' files are not read at all
    assert clusterrun("diagnose").out.startswith("crashed: rank 1 on local-0 failed first\n")


def test_output_of_ranks_cannot_control_the_terminal(clusterrun: CommandLine) -> None:
    (clusterrun.folder / "train.py").write_text("raise ValueError('\\x1b[2J\\x1b]0;title\\x07 bad')\n")
    clusterrun("submit", "--wait", "train.py")
    result = clusterrun("diagnose")
    assert "\\x1b[2J" in result.out
    assert "\x1b" not in result.out
