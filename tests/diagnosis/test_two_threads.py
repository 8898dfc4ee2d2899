"""Two threads of a rank on one process group: the group is named, and no rank is blamed."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.diagnosis.decide import decide, decide_end
from clusterrun.diagnosis.evidence import Group, RankSnapshot, Record
from clusterrun.diagnosis.printed_errors import heard
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import ThreadPlace
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.record import Failure
from clusterrun.model.states import State
from tests.diagnosis.ranks import LIBRARY, LOOP, NOW, bare, case, history, rank, record

BACKWARD = (f"{LIBRARY}/torch/autograd/graph.py:979 _engine_run_backward", "/home/me/train.py:12 <module>")
METRICS = ThreadPlace("/home/me/train.py:9 metrics", "/home/me/train.py:9 metrics", "all_reduce")


def trains(number: int, by_thread: bool, recorded: bool = True, **changes: Any) -> RankSnapshot:
    """Return a rank whose newest call is of the metrics thread, or of the main thread in ``backward``."""
    operation, sizes = ("all_reduce", "[1]") if by_thread else ("broadcast", "[3]")
    newest = Record("0", 11, operation, sizes, "Float", False, NOW - 60, 11, by_thread and recorded)
    threads = (METRICS,) if by_thread else ()
    return rank(number, records=(*history(10), newest), stack=BACKWARD, threads=threads, **changes)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("threads", [(0, 3), (1,), (0, 1, 2)])
def test_a_thread_in_the_main_threads_group_is_named_with_its_line(
    threads: tuple[int, ...], recorded: bool
) -> None:
    """Recorded of DDP beside a thread that reduces a metric; torch before 2.9 does not record the thread."""
    observed = [trains(number, number in threads, recorded) for number in range(4)]
    result = decide(case(*observed, stalled=60.0)).diagnosis
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "another thread called all_reduce at train.py:9 (metrics)" in result.message
    assert "the main thread uses at train.py:12" in result.message
    assert "dist.new_group()" in result.remedy


def test_a_thread_with_its_own_group_is_no_cause() -> None:
    """A checkpoint in the background has its own group. Rank 1 hangs elsewhere."""
    own = Record("1", 3, "all_gather", "[1]", "Long", False, NOW - 60, 3, True)
    main = record(11, done=False)
    groups = (Group("0", 4, 11, True, "gloo", "0-3"), Group("1", 4, 3, False, "gloo", "0-3"))
    waits = [
        rank(n, groups=groups, records=(*history(10), main, own), stack=BACKWARD, threads=(METRICS,))
        for n in (0, 2, 3)
    ]
    late = rank(1, groups=groups, records=history(10), stack=LOOP)
    result = decide(case(waits[0], late, *waits[1:], stalled=60.0)).diagnosis
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [1])


def test_a_thread_that_does_all_the_training_is_no_second_one() -> None:
    """Its main thread only waits for it."""
    observed = [trains(number, by_thread=number != 1) for number in range(4)]
    observed[1] = rank(1, records=history(10), stack=LOOP)
    result = decide(case(*observed, stalled=60.0)).diagnosis
    assert [culprit.rank for culprit in result.culprits] == [1]


def test_the_records_of_both_threads_name_the_group_after_an_abort() -> None:
    """gloo aborted: a rank was sent the bytes of the other thread's call."""
    abort = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1000 vs 4. Received"
    errors = heard([(2, "err", 100.0, abort)])
    calls = (record(5), record(6, sizes="[1]"), record(7))
    mixed = tuple(
        Record(c.group, c.sequence, c.operation, c.sizes, c.types, True, c.at, 0, c.sizes == "[1]")
        for c in calls
    )
    last = bare(0, "n0", "", records=mixed, groups=(Group("0", 4, ranks="0-3"),), threads=(METRICS,))
    failure = Failure(2, "n1", -6, 100.1, "rank 2 on n1 was killed by signal 6 (SIGABRT)")
    remaining = Remains(State.FAILED, "", failure, errors, ("n0", "n0", "n1", "n1"), last=(last,))
    result = decide_end(remaining)
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "another thread called all_reduce at train.py:9 (metrics) in group 0" in result.message


ABORTED = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1000 vs 4. Received
Fatal Python error: Aborted

Thread 0x00007f08bc8106c0 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 10 in metrics
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f08e2891b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 14 in <module>
"""


def test_the_dump_of_a_rank_that_aborted_shows_the_lines_of_both_threads() -> None:
    (error,) = heard([(0, "err", 100.0, ABORTED)])
    assert (error.thread, error.main) == ("/home/me/train.py:10 metrics", "/home/me/train.py:14 <module>")
    (error,) = heard([(0, "err", 100.0, ABORTED.replace(" in _bootstrap", " in <module>"))])
    assert error.thread == ""
    joins = ABORTED.replace("torch/distributed/distributed_c10d.py", "queue.py")
    (error,) = heard([(0, "err", 100.0, joins)])
    assert (error.thread, error.main) == ("", "")


def aborts(*left: RankSnapshot, printed: str = ABORTED) -> Diagnosis:
    """Return the diagnosis of two ranks that both aborted, if ``left`` left records."""
    errors = heard([(number, "err", 100.0, printed) for number in range(2)])
    failure = Failure(1, "n1", -6, 100.1, "rank 1 on n1 was killed by signal 6 (SIGABRT)")
    return decide_end(Remains(State.FAILED, "", failure, errors, ("n0", "n0", "n1", "n1"), last=left))


def test_the_stacks_of_aborted_ranks_show_both_threads_without_records() -> None:
    """Recorded of two ranks that abort at once."""
    result = aborts()
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "another thread made calls at train.py:10 (metrics)" in result.message
    assert "the main thread made its own at train.py:14" in result.message
    assert "dist.new_group()" in result.remedy


def test_the_only_recorded_group_belongs_to_both_threads_of_an_aborted_rank() -> None:
    by_main = bare(2, "n1", "", records=history(5), groups=(Group("0", 4, ranks="0-3"),))
    assert "(metrics) in group 0, which the main thread uses at train.py:14" in aborts(by_main).message


def test_the_stacks_of_aborted_ranks_prove_nothing_with_several_groups() -> None:
    """The other thread may have a group of its own, and the main thread's call may be wrong."""
    groups = (Group("0", 4, ranks="0-3"), Group("1", 4, ranks="0-3"))
    by_main = bare(2, "n1", "", records=history(5), groups=groups)
    assert not aborts(by_main).message.startswith("two threads")


def test_a_thread_that_the_main_thread_awaits_is_no_second_one() -> None:
    main, waits = (
        'distributed_c10d.py", line 3252 in all_reduce\n  File "/home/me/train.py", line 14',
        "queue.py",
    )
    printed = ABORTED.replace(main, f'{waits}", line 171 in get\n  File "/home/me/train.py", line 14')
    assert not aborts(printed=printed).message.startswith("two threads")
