"""Cases of real scripts: slow saves, swallowed errors, wrong splits, lists of other lengths, lost peers."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.diagnosis.decide import decide, decide_end
from clusterrun.diagnosis.evidence import Group, MainCall, RankSnapshot
from clusterrun.diagnosis.explain_end import with_logged
from clusterrun.diagnosis.printed_errors import heard, last_complaint
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict
from clusterrun.model.frozen import replace
from clusterrun.model.record import Failure
from clusterrun.model.states import State
from tests.diagnosis.ranks import BARRIER, LOOP, NOW, bare, case, rank, record, waiter


def ended(errors: dict[int, tuple[float, str]], *last: RankSnapshot, failed: int, code: int = 1) -> Diagnosis:
    """Return the diagnosis of four ranks on two nodes with each rank's stderr and records."""
    printed = heard([(number, "err", at, text) for number, (at, text) in errors.items()])
    failure = Failure(failed, f"n{failed // 2}", code, 101.0, f"rank {failed} exited with code {code}")
    nodes = ("n0", "n0", "n1", "n1")
    return decide_end(Remains(State.FAILED, "", failure, printed, nodes, last=last))


def culprits(diagnosis: Diagnosis) -> list[int]:
    return [culprit.rank for culprit in diagnosis.culprits]


# --- a rank that saves ---


@pytest.mark.parametrize("stalled", [0.0, 14.0, 700.0])
def test_a_rank_whose_file_grows_is_not_blamed_for_any_duration(stalled: float) -> None:
    saves = rank(0, stack=LOOP, file="/ckpt/step_40.pt", written=1e6)
    result = decide(case(saves, *(waiter(n, stack=BARRIER) for n in (1, 2, 3)), stalled=stalled)).diagnosis
    assert (result.verdict, culprits(result)) == (Verdict.NOTHING, [])
    assert "it writes /ckpt/step_40.pt, 1.0 MB/s at train.py:33 (work)" in "\n".join(result.evidence)


def test_a_rank_that_only_appends_to_a_log_is_blamed() -> None:
    logs = rank(0, stack=LOOP, file="/logs/run.txt", written=200.0)
    result = decide(case(logs, *(waiter(n, stack=BARRIER) for n in (1, 2, 3)), stalled=60.0)).diagnosis
    assert culprits(result) == [0]


def test_the_saving_one_of_two_late_ranks_is_not_blamed() -> None:
    saves = rank(0, stack=LOOP, file="/ckpt/step_40.pt", written=1e6)
    result = decide(case(saves, rank(1, stack=LOOP), waiter(2), waiter(3), stalled=60.0)).diagnosis
    assert culprits(result) == [1]


# --- where a slow rank spends its time ---


def test_the_line_of_a_slow_rank_is_where_it_is_outside_of_collectives() -> None:
    def steps(late: float) -> tuple[Any, ...]:
        return tuple(record(n, at=NOW - 9 + 0.2 * n + late) for n in range(40))

    observed = [
        rank(n, 3, 40, node="n0", records=steps(0.15 * (n == 1)), stack=BARRIER, moved=True) for n in range(3)
    ]
    lines = ("/home/me/data.py:7 augment", "/home/me/data.py:7 augment", "/home/me/train.py:3 log")
    observed[1] = replace(observed[1], stacks=replace(observed[1].stacks, samples=lines))
    result = decide(case(*observed)).diagnosis
    assert (result.verdict, culprits(result)) == (Verdict.SLOW, [1])
    assert "it was at data.py:7 (augment) in 2 of 3 looks" in result.culprits[0].why


@pytest.mark.parametrize(("still", "verdict"), [(2.0, Verdict.SLOW), (400.0, Verdict.NOTHING)])
def test_a_rank_that_saves_slowly_at_every_step_is_slow_also_while_nothing_moves(
    still: float, verdict: Verdict
) -> None:
    def steps(late: float) -> tuple[Any, ...]:
        return tuple(record(n, at=NOW - still - 90 + 3 * n + late) for n in range(30))

    waits = record(30, done=False, at=NOW - still)
    others = [rank(n, 3, 30, records=(*steps(0.0), waits), stack=BARRIER) for n in (0, 1)]
    saves = rank(2, 3, 30, records=steps(2.5), stack=LOOP, file="/ckpt/shard.pt", written=3e5)
    result = decide(case(*others, saves)).diagnosis
    assert result.verdict is verdict
    assert "it writes /ckpt/shard.pt, 0.3 MB/s at train.py:33 (work)" in str(result)


# --- threads ---


def test_a_thread_that_all_other_ranks_have_is_missed() -> None:
    reader = "/home/me/data.py:12 read"
    observed = [waiter(n, threads=(reader,)) for n in (0, 2, 3)]
    result = decide(case(observed[0], rank(1, stack=LOOP), *observed[1:], stalled=60.0)).diagnosis
    assert culprits(result) == [1]
    assert any(line.startswith("rank 1 has no thread in read (data.py)") for line in result.evidence)


@pytest.mark.parametrize("having", [(0, 1, 2, 3), (0, 1), ()])
def test_threads_that_all_ranks_have_or_about_half_are_not_mentioned(having: tuple[int, ...]) -> None:
    reader = ("/home/me/data.py:12 read",)
    observed = [waiter(n, threads=reader if n in having else ()) for n in range(4)]
    result = decide(case(*observed, stalled=60.0)).diagnosis
    assert not any("no thread" in line for line in result.evidence)


# --- arguments of a call that aborted ---

ABORTED = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 8. Received"
RESET = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]: RuntimeError: Connection closed by peer"


def exchanged(number: int, *splits: int) -> RankSnapshot:
    """Return a rank that failed in ``all_to_all_single`` with these splits: sent and expected."""
    call = record(1, operation="all_to_all", sizes="[8]")
    function = MainCall(function="all_to_all_single", counts=splits)
    groups = (Group("0", 4, ranks="0-3"),)
    return replace(bare(number, f"n{number // 2}", "", records=(call,), groups=groups), call=function)


@pytest.mark.parametrize("reported", [(0, 2, 3), (0, 1, 2, 3), (0, 2, 1)])
def test_the_rank_with_different_splits_is_named_and_not_the_aborted_one(reported: tuple[int, ...]) -> None:
    """Rank 2 sends rank 1 four rows, and rank 3 none. Rank 1 expects two, and aborts."""
    splits = dict.fromkeys(range(4), (2, 2, 2, 2, 2, 2, 2, 2))
    splits[2] = (2, 4, 2, 0, 2, 2, 2, 2)
    errors = {number: (100.5, RESET.format(number)) for number in (0, 2, 3)}
    remaining = [exchanged(number, *splits[number]) for number in reported]
    result = ended({1: (100.0, ABORTED), **errors}, *remaining, failed=1, code=-6)
    assert (result.verdict, culprits(result)) == (Verdict.MISMATCH, [2])


def test_neither_of_two_ranks_with_mismatched_splits_is_blamed() -> None:
    entry, other = exchanged(2, 2, 2, 2, 0, 2, 2, 2, 2), exchanged(3, 2, 2, 2, 2, 2, 2, 2, 2)
    result = ended({1: (100.0, ABORTED)}, entry, other, failed=1, code=-6)
    assert (result.verdict, culprits(result)) == (Verdict.MISMATCH, [])
    assert "rank 2 sends 0 rows to rank 3, which expects 2" in result.message


def test_the_root_that_brings_a_shorter_list_is_named_not_the_memory_that_the_others_ask_for() -> None:
    """The others read the sizes of objects that the root did not send, and ask for that much memory."""
    memory = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]: RuntimeError: [enforce fail at "
    memory += "alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    errors = {number: (100.0, memory.format(number)) for number in (1, 2, 3)}

    def shared(number: int, size: str) -> RankSnapshot:
        call = record(4, operation="broadcast", sizes=size, types="Long")
        function = MainCall(function="broadcast_object_list")
        groups = (Group("0", 4, ranks="0-3"),)
        return replace(bare(number, f"n{number // 2}", "", records=(call,), groups=groups), call=function)

    remaining = [shared(0, "[2]"), *(shared(number, "[3]") for number in (1, 2, 3))]
    result = ended(errors, *remaining, failed=1)
    assert (result.verdict, culprits(result)) == (Verdict.MISMATCH, [0])


SHORT = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 24 vs 16. Received"


@pytest.mark.parametrize(
    ("lengths", "aborted", "odd"),
    [
        ({0: 3, 3: 2}, (1, 2), [0]),  # the root has three objects, and the others two
        ({0: 3, 1: 3, 3: 3}, (2,), [2]),
        ({0: 3}, (1,), []),  # of two, either may be wrong
    ],
)
def test_the_odd_rank_of_lists_with_different_lengths_and_the_root_are_reported(
    lengths: dict[int, int], aborted: tuple[int, ...], odd: list[int]
) -> None:
    remaining = [
        replace(
            bare(number, f"n{number // 2}", ""),
            call=MainCall(function="broadcast_object_list", root=0, counts=(length,)),
        )
        for number, length in lengths.items()
    ]
    result = ended(dict.fromkeys(aborted, (100.0, SHORT)), *remaining, failed=aborted[0], code=-6)
    assert (result.verdict, culprits(result)) == (Verdict.MISMATCH, odd)
    assert "its root is rank 0" in result.message


def test_an_error_of_the_script_is_not_put_down_to_a_call_in_its_handler() -> None:
    own = "[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'vocab'"
    groups = (Group("0", 4, ranks="0-3"),)
    other = [record(4, operation="barrier", sizes="", types=""), record(4)]
    remaining = [bare(n, f"n{n // 2}", "", records=(other[n > 0],), groups=groups) for n in range(2)]
    result = ended({1: (100.0, own)}, *remaining, failed=1)
    assert (result.verdict, culprits(result)) == (Verdict.CRASHED, [1])


# --- which error was first ---


@pytest.mark.parametrize(
    "lost",
    [
        "ConnectionError: peer gone",
        "EOFError",
        "BrokenPipeError: [Errno 32] write",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "multiprocessing.context.ConnectionAbortedError: gone",
    ],
)
@pytest.mark.parametrize("failed", [0, 1])
def test_a_lost_connection_never_outranks_another_ranks_own_error_of_the_same_second(
    lost: str, failed: int
) -> None:
    """Recorded without torch: the others noticed 8 ms before the log shows the error itself."""
    errors = {
        0: (100.0, f"Traceback (most recent call last):\n{lost}"),
        1: (100.008, "Traceback (most recent call last):\nValueError: bad shard 7"),
    }
    assert culprits(ended(errors, failed=failed)) == [1]


def test_a_lost_connection_long_before_is_the_first_error() -> None:
    errors = {
        0: (98.0, "[rank0]: Traceback (most recent call last):\n[rank0]: ConnectionError: no licence server"),
        1: (100.0, "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: nothing came"),
    }
    assert culprits(ended(errors, failed=0)) == [0]


HYDRA = """Error executing job with overrides: []
Error in call to target '__main__.go':
TypeError("can't multiply sequence by non-int of type 'str'")

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."""


def test_the_exception_that_hydra_prints_decides_and_not_its_hint() -> None:
    result = ended({1: (100.0, HYDRA)}, failed=1)
    assert culprits(result) == [1]
    assert "TypeError(\"can't multiply sequence by non-int of type 'str'\")" in result.culprits[0].why
    assert "HYDRA_FULL_ERROR" not in str(result)


# --- what a rank logged of an error that it survived ---


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["step 3", "12:01:02 WARNING reader gave up at record 12: KeyError('label')", "step 4"], 1),
        (["retrying shard 7 (attempt 3)", "loss 0.3"], 0),
        (["x.py:3: UserWarning: this error is known", "step 4"], None),
        (
            [
                "[rank1]: RuntimeError: could not connect",
                "  raise Failure  # cannot happen",
                "OSError: failed",
            ],
            None,
        ),
        (["step 3", "what cannot be pickled is skipped", "Exception in thread sender:"], 1),
        (["no errors so far", "terrorised", "failsafe on"], None),
        ([], None),
    ],
)
def test_the_last_line_about_a_problem_is_found(lines: list[str], complaint: int | None) -> None:
    assert last_complaint(lines) == ("" if complaint is None else lines[complaint])


def test_a_complaint_that_other_ranks_have_too_explains_nothing() -> None:
    lines = ["rank 5: loss is nan at step 7, skipping", "WARNING: failed to import apex, epoch 2"]
    assert last_complaint(lines, ["WARNING: failed to import apex, epoch 1"]) == lines[0]


def test_a_progress_bar_before_a_warning_is_left_out() -> None:
    bar = "2%|▏         | 39/2000 [00:01<00:50]\r2%|▏         | 40/2000 [00:01<00:50, 38.47it/s]"
    assert last_complaint([bar + "ERROR upload failed"]) == "ERROR upload failed"


def test_a_log_line_of_a_culprit_is_shown_once() -> None:
    hang = Diagnosis(Verdict.NEVER_ARRIVED, "", (Culprit(1, "n0", ""),))
    logged = with_logged(hang, {1: "WARNING gave up at record 12", 2: "WARNING of another rank"})
    assert logged.evidence == ("rank 1 has logged: WARNING gave up at record 12",)
    assert with_logged(logged, {1: "WARNING gave up at record 12"}) == logged
