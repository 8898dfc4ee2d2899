"""Verdicts on tapes of what was seen: who is to blame, and that nobody is where nothing is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.diagnosis.decide import decide
from clusterrun.diagnosis.evidence import Backlog, ChildProcess, Group, RankSnapshot, ThreadWait
from clusterrun.diagnosis.stacks import ThreadPlace
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Stacks, Verdict
from clusterrun.model.frozen import replace
from tests.diagnosis.ranks import (
    ALL_REDUCE,
    BARRIER,
    LIBRARY,
    LOADER,
    LOOP,
    MEETING,
    NOW,
    RECV,
    case,
    changed,
    history,
    rank,
    record,
    waiter,
)


def verdict(*observed: RankSnapshot, **changes: object) -> Diagnosis:
    return decide(case(*observed, **changes)).diagnosis


def blamed(diagnosis: Diagnosis) -> list[tuple[int, str, str]]:
    return [(culprit.rank, culprit.node, culprit.why) for culprit in diagnosis.culprits]


def test_a_rank_at_the_prompt_of_a_debugger_is_reported() -> None:
    library = "/usr/lib/python3.11"
    prompt = (
        f"{library}/cmd.py:126 Cmd.cmdloop",
        f"{library}/pdb.py:397 Pdb._cmdloop",
        f"{library}/pdb.py:433 Pdb.interaction",
        f"{library}/bdb.py:114 Bdb.dispatch_line",
        "/home/u/train.py:11 step",
        "/home/u/train.py:40 <module>",
    )
    result = verdict(waiter(0), rank(1, stack=prompt), stalled=60.0)
    assert [culprit.why for culprit in result.culprits] == [
        "it waits at the prompt of a debugger at train.py:11 (step)"
    ]
    assert "breakpoint()" in result.remedy


def test_a_rank_that_waits_for_its_standard_input_is_reported() -> None:
    stacks = {"stack": LOOP, "waits": (ThreadWait("input", LOOP[0]),), "waits_in": "anon_pipe_read"}
    result = verdict(waiter(0), rank(1, **stacks), stalled=60.0)
    assert "standard input" in result.message and "input()" in result.message


def test_the_thread_that_holds_the_lock_of_the_interpreter_is_named() -> None:
    holder = ThreadPlace("/home/u/train.py:70 run", "/home/u/train.py:77 read", holds_lock=True)
    result = verdict(waiter(0), rank(1, stack=LOOP, threads=(holder,)), stalled=60.0)
    assert "which another thread holds at train.py:77 (read)" in result.message


def test_an_absent_rank_is_reported_completely() -> None:
    result = verdict(waiter(0), rank(1, stack=LOOP, busy=0.98), waiter(2), waiter(3), stalled=60.0)
    why = "it is busy in user code at train.py:33 (work), 98 % of a processor"
    assert result == Diagnosis(
        Verdict.NEVER_ARRIVED,
        f"rank 1 on n0 never came to all_reduce (call 11 of group 0): {why}",
        (Culprit(1, "n0", why),),
        (Stacks("1", LOOP), Stacks("0,2-3", ALL_REDUCE)),
        (
            "ranks 0 and 2-3 have waited 11 s in all_reduce (call 11 of group 0) at train.py:11 (step), "
            "for rank 1",
            "nothing has moved for 60 s",
        ),
        "is that an endless loop, or work that only this rank has? the others wait for it",
        certainty=60,
    )


JOINED = ("/usr/lib/python3.11/multiprocessing/popen_fork.py:27 poll", *LOOP)
EVALUATES = (*MEETING[:-1], "/home/me/eval.py:9 main")
FORKED = ("/home/me/cache.py:3 get", "/usr/lib/python3.11/multiprocessing/process.py:108 run", *LOOP)

IDLE = "/usr/lib/python3.11/multiprocessing/queues.py:113 Queue.get"
WORKER = (
    f"{LIBRARY}/torch/utils/data/_utils/worker.py:334 _worker_loop",
    "/usr/lib/python3.11/multiprocessing/process.py:108 run",
    *LOOP,
)


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        (rank(1, state="T", answered=False), "it is stopped (SIGSTOP)"),
        (rank(1, state="t", answered=False), "a debugger holds it"),
        (rank(1, state=""), "its process has ended, while others still wait for it"),
        (
            rank(1, state="D", waits_in="nfs_wait_bit_killable", stack=LOOP),
            "it waits in the kernel for a disk or a network file system (nfs_wait_bit_killable) "
            "at train.py:33 (work)",
        ),
        (rank(1, stack=LOOP), "it waits in user code at train.py:33 (work)"),
        (rank(1, stack=LOADER), "it waits for its data-loader at train.py:17"),
        (
            rank(1, stack=LOADER, children=(ChildProcess(77, "python", "T"),)),
            "it waits for its data-loader at train.py:17; worker 77 is stopped",
        ),
        (
            rank(
                1,
                stack=LOADER,
                children=(
                    ChildProcess(76, "python", "S", "", (IDLE, *WORKER)),
                    ChildProcess(77, "python", "S", "", ("/home/me/data.py:3 read", *WORKER)),
                ),
            ),
            "it waits for its data-loader at train.py:17; worker 77 waits at data.py:3 (read)",
        ),
        (
            rank(1, stack=("/usr/lib/python3.11/multiprocessing/queues.py:103 get", *LOOP), ended=(7,)),
            "it waits in user code at train.py:33 (work); process 7, which it started, has ended",
        ),
        (
            rank(
                1,
                stack=("/usr/lib/python3.11/subprocess.py:9 wait", *LOOP),
                children=(ChildProcess(7, "rsync", "S"),),
            ),
            "it waits in user code at train.py:33 (work), for rsync (process 7)",
        ),
        (
            rank(
                1,
                stack=("/usr/lib/python3.11/subprocess.py:9 wait", *LOOP),
                children=(ChildProcess(7, "tok", "S", "anon_pipe_write"),),
            ),
            "it waits in user code at train.py:33 (work), for tok (process 7), "
            "which waits to write into a pipe that nobody empties",
        ),
        (
            rank(
                1,
                stack=("/usr/lib/python3.11/subprocess.py:9 wait", *LOOP),
                children=(
                    ChildProcess(7, "bash", "S", "do_wait"),
                    ChildProcess(8, "python", "S", "hrtimer_nanosleep", EVALUATES),
                ),
            ),
            "it waits in user code at train.py:33 (work), for python (process 8), "
            "which waits in init_process_group at eval.py:9 (main)",
        ),
        (
            rank(1, stack=LOOP, lock_holder=55, lock="/data/cache.lock"),
            "it waits for the lock of /data/cache.lock at train.py:33 (work), "
            "which process 55 of its node holds",
        ),
        (
            rank(1, stack=("/usr/lib/python3.11/threading.py:1590 _shutdown",)),
            "its script has ended, and its process has not",
        ),
        (
            rank(
                1,
                stack=("/usr/lib/python3.11/threading.py:1590 _shutdown",),
                threads=("/home/me/train.py:31 upload",),
            ),
            "its script has ended, and its process has not; another thread is at train.py:31 (upload)",
        ),
        (
            rank(1, stack=LOOP, threads=("/home/me/io.py:3 read", "/home/me/io.py:9 write")),
            "it waits in user code at train.py:33 (work); "
            "other threads are at io.py:3 (read) and io.py:9 (write)",
        ),
        (
            rank(
                1,
                stack=LOOP,
                call="store",
                key_source="f'a/{host()}'",
                sets=("/t/train.py:9\tf'a/{name()}'",),
            ),
            "it waits for the key f'a/{host()}' of the store at train.py:33 (work); "
            "train.py:9 sets f'a/{name()}'",
        ),
        (
            rank(1, stack=LOOP, waits=(ThreadWait("lock", LOOP[0], "/t/train.py:3 add", 0),)),
            "it waits for a lock at train.py:33 (work), and the same thread holds it at train.py:3 (add): "
            "a deadlock",
        ),
        (
            rank(
                1,
                stack=LOOP,
                waits=(
                    ThreadWait("lock", LOOP[0], "/t/ema.py:3 average", 1),
                    ThreadWait("lock", "/t/ema.py:3 average", LOOP[0], 0),
                ),
            ),
            "it waits for a lock at train.py:33 (work), and another thread holds it at ema.py:3 (average); "
            "that thread waits for a lock, and the first one holds it at train.py:33 (work): "
            "a deadlock",
        ),
        (
            rank(
                1,
                stack=LOOP,
                threads=("/t/data.py:3 fill",),
                waits=(
                    ThreadWait("join", LOOP[0], "/t/data.py:3 fill", 1),
                    ThreadWait("put", "/t/data.py:3 fill"),
                ),
            ),
            "it waits for the end of another thread at train.py:33 (work), and it is at "
            "data.py:3 (fill); that thread waits to put an item into a full queue",
        ),
        (
            rank(
                1, stack=JOINED, children=(ChildProcess(77, "python", "S", "futex_wait_queue", FORKED, True),)
            ),
            "it waits in user code at train.py:33 (work); its worker 77 waits at cache.py:3 (get), "
            "for a lock or thread of its parent that its fork has not",
        ),
        (
            rank(1, stack=JOINED, children=(ChildProcess(77, "python", "S", "futex_wait_queue", FORKED),)),
            "it waits in user code at train.py:33 (work); its worker 77 waits at cache.py:3 (get)",
        ),
        (
            rank(1, stack=LOOP, waits=(ThreadWait("read", LOOP[0], "10.0.0.9:443"),)),
            "it waits for data from 10.0.0.9:443 at train.py:33 (work)",
        ),
        (
            rank(1, stack=LOOP, waits_in="hrtimer_nanosleep", loop="free() < need"),
            "it waits in user code at train.py:33 (work), in a sleep, while free() < need",
        ),
        (
            rank(1, stack=LOOP, state="R", busy=1.0, loop="label != 3"),
            "it is busy in user code at train.py:33 (work), 100 % of a processor, while label != 3",
        ),
        (
            rank(1, stack=LOOP, threads=("/t/data.py:3 fill",), waits=(ThreadWait("get", LOOP[0]),)),
            "it waits for an item of an empty queue at train.py:33 (work); another thread is at "
            "data.py:3 (fill)",
        ),
        (
            rank(1, stack=("<frozen importlib._bootstrap>:241 _call_with_frames_removed", *LOOP)),
            "it is still importing at train.py:33 (work)",
        ),
        (
            rank(
                1,
                stack=(
                    "/usr/lib/python3.11/codecs.py:322 decode",
                    "/home/me/vocabulary.py:3 <module>",
                    "<frozen importlib._bootstrap>:241 _call_with_frames_removed",
                    *LOOP,
                ),
            ),
            "it is still importing, and waits at vocabulary.py:3, in that module",
        ),
        (
            rank(1, stack=(), waits_in="futex_wait", answered=False),
            "it sleeps in futex_wait and shows no Python stack",
        ),
        (
            rank(1, stack=LOOP, state="R", busy=0.1),
            "it is busy in user code at train.py:33 (work), 10 % of a processor",
        ),
    ],
)
def test_the_reason_of_an_absent_rank_is_reported(missing: RankSnapshot, why: str) -> None:
    result = verdict(waiter(0), missing, waiter(2), waiter(3), stalled=60.0)
    assert (result.verdict, blamed(result)) == (Verdict.NEVER_ARRIVED, [(1, "n0", why)])
    assert result.remedy


def test_a_rank_that_skipped_a_collective_and_waits_in_a_later_group_is_no_root() -> None:
    """It waits for the rank that is in no collective. That rank is to blame."""
    two = (Group("0", 3, 10, True, "gloo", "0-2"), Group("1", 2, 4, False, "gloo", "1-2"))
    in_first = rank(0, 3, groups=two[:1], records=(*history(9), record(10, done=False)), stack=ALL_REDUCE)
    in_second = rank(
        1,
        3,
        groups=(replace(two[0], sequence=9), two[1]),
        records=(record(4, False, group="1"),),
        stack=ALL_REDUCE,
    )
    outside = rank(
        2, 3, groups=(replace(two[0], sequence=9), replace(two[1], sequence=3)), records=(), stack=LOOP
    )
    result = verdict(in_first, in_second, outside)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [2])


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_mismatch_of_which_none_is_named() -> None:
    groups = (Group("a", 2, 1, True, "gloo", "0-1"), Group("b", 2, 1, False, "gloo", "0-1"))
    first = rank(
        0,
        2,
        groups=(groups[0], replace(groups[1], sequence=0)),
        records=(record(1, False, group="a"),),
        stack=ALL_REDUCE,
    )
    second = rank(
        1,
        2,
        groups=(replace(groups[0], sequence=0), groups[1]),
        records=(record(1, False, group="b"),),
        stack=ALL_REDUCE,
    )
    result = verdict(first, second)
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ()), "either may be the one that is wrong"
    assert "wait for each other in different groups" in result.message


@pytest.mark.parametrize(
    ("odd", "called", "stack"),
    [
        (record(11, False, "barrier", "", ""), "barrier at train.py:20 (step)", BARRIER),
        (record(11, False, sizes="[8]"), "all_reduce of [8] Float at train.py:11 (step)", ALL_REDUCE),
        (record(11, False, types="Double"), "all_reduce of [4] Double at train.py:11 (step)", ALL_REDUCE),
    ],
)
def test_the_rank_that_called_something_else_is_named_with_its_line(odd, called, stack) -> None:
    other = waiter(2, records=(*history(10), odd), stack=stack)
    result = verdict(waiter(0), waiter(1), other, waiter(3))
    assert (result.verdict, blamed(result)) == (
        Verdict.MISMATCH,
        [(2, "n1", f"it called {called} where ranks 0-1 and 3 called all_reduce of [4] Float")],
    )


def test_two_differing_ranks_are_both_named() -> None:
    other = waiter(1, 2, records=(*history(10), record(11, False, "barrier", "", "")), stack=BARRIER)
    result = verdict(waiter(0, 2), other)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [0, 1])


def test_collectives_whose_sizes_may_differ_by_rank_are_no_mismatch() -> None:
    uneven = [record(11, False, "alltoall_base", f"[{n}]", "Float") for n in (0, 1)]
    observed = [waiter(n, 2, records=(*history(10), uneven[n])) for n in (0, 1)]
    assert verdict(*observed).verdict is not Verdict.MISMATCH


def test_an_endless_collective_of_all_ranks_is_a_link_named_by_its_silent_ends() -> None:
    debts = {1: (Backlog("10.0.0.3", 96, 5),), 2: (Backlog("10.0.0.2", 644, 5),)}
    observed = [
        waiter(n, node=f"n{n}", addresses=(f"10.0.0.{n + 1}",), backlog=debts.get(n, ())) for n in range(4)
    ]
    result = verdict(*observed)
    assert (result.verdict, result.message, blamed(result)) == (
        Verdict.LINK,
        "all ranks have begun all_reduce, and it does not end: the link between n1 and n2 is broken",
        [
            (-1, "n1", "its link to n2 is broken"),
            (-1, "n2", "its link to n1 is broken"),
        ],
    )
    assert "rank 1 on n1 sent 96 bytes to n2 (10.0.0.3) 5 times without an answer" in result.evidence


def test_the_end_that_all_broken_links_share_is_named_alone() -> None:
    owed = (Backlog("10.0.0.1", 96, 5),)
    observed = [
        waiter(n, node=f"n{n}", addresses=(f"10.0.0.{n + 1}",), backlog=owed if n else ()) for n in range(4)
    ]
    assert {node for _, node, _ in blamed(verdict(*observed))} == {"n0"}


def test_a_rank_that_left_a_collective_and_waits_in_the_next_does_not_hide_the_endless_one() -> None:
    result = verdict(waiter(0, begun=12), waiter(1), waiter(2), waiter(3))
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
    assert "does every rank give all_reduce the same root (src, dst)" in result.remedy


def test_only_traffic_that_may_use_another_path_is_called_a_link_without_connections() -> None:
    groups = (Group("0", 2, 11, True, "nccl", "0-1"),)
    result = verdict(waiter(0, 2, groups=groups), waiter(1, 2, groups=groups))
    assert (result.verdict, result.culprits) == (Verdict.LINK, ())
    assert "RDMA" in result.evidence[-1]
    assert "a GPU that hangs in a kernel before it looks the same" in result.evidence[-2]
    assert "dmesg | grep -i xid" in result.remedy


def test_a_rank_that_skips_one_of_many_equal_calls_is_named_at_the_last_call() -> None:
    result = verdict(waiter(0), rank(1, stack=(*BARRIER[:0], *LOOP)), waiter(2))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [1])


def test_ranks_that_move_are_well() -> None:
    moving = [
        rank(n, moved=True, records=tuple(record(i, at=NOW - 1 + i / 20) for i in range(20))) for n in (0, 1)
    ]
    result = verdict(*moving)
    assert (result.verdict, result.culprits, result.evidence) == (
        Verdict.NOTHING,
        (),
        (
            "rank 0 began 20 collectives within 1.0 s",
            "the longest pause between two of the last ones was 0.1 s",
        ),
    )


@pytest.mark.parametrize(
    ("sizes", "culprits"),
    [
        (["[4]", "[4]", "[5]", "[4]"], [2]),
        (["[4]", "[5]"], [0, 1]),
        (["[2, 2]", "[4]", "[4]"], []),  # the same number of elements
    ],
)
def test_ranks_that_progress_with_results_of_different_sizes_are_reported(
    sizes: list[str], culprits: list[int]
) -> None:
    size = len(sizes)
    snapshots = []
    for number, own in enumerate(sizes):
        calls = (*history(7), record(8, sizes=own), *history(10)[8:])
        snapshots.append(rank(number, size, records=calls, moved=True))
    diagnosis = verdict(*snapshots)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert diagnosis.verdict is (Verdict.MISMATCH if culprits else Verdict.NOTHING)
    assert ("continues with wrong results" in diagnosis.message) == bool(culprits)


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all"])
def test_ranks_that_move_may_gather_different_sizes(operation: str) -> None:
    calls = [(*history(7), record(8, operation=operation, sizes=f"[{number}]")) for number in range(3)]
    diagnosis = verdict(*(rank(number, 3, 8, records=of, moved=True) for number, of in enumerate(calls)))
    assert diagnosis.verdict is Verdict.NOTHING


def test_a_usual_pause_blames_nobody_and_requests_a_longer_look() -> None:
    """Steps of 30 s, the last begun 20 s ago: one rank computes, the others wait."""
    slow = tuple(record(n, at=NOW - 50 + 30 * n) for n in (0, 1))
    inside = (*slow, record(2, done=False, at=NOW - 1))
    observed = [waiter(0, 2, 2, records=inside), rank(1, 2, 1, records=slow, stack=LOOP, busy=1.0)]
    judged = decide(case(*observed))
    assert (judged.diagnosis.verdict, judged.diagnosis.culprits, judged.certain) == (
        Verdict.NOTHING,
        (),
        False,
    )


def test_a_rank_that_prints_while_the_others_wait_works() -> None:
    result = verdict(waiter(0), waiter(1), waiter(2), rank(3, stack=LOOP, printed=True, busy=1.0))
    assert (result.verdict, result.culprits) == (Verdict.NOTHING, ())


def test_the_awaited_rank_is_reported_with_its_line_while_it_prints() -> None:
    """A rank that asks for something again and again, and says so, is not blamed; nor is it hidden."""
    result = verdict(waiter(0), waiter(1), waiter(2), rank(3, stack=LOOP, printed=True, quiet=0.0))
    assert (result.verdict, result.message) == (Verdict.NOTHING, "the others wait for rank 3, still printing")
    assert result.evidence[1] == "rank 3 on n1: it waits in user code at train.py:33 (work)"


def test_output_of_a_waiting_rank_is_no_progress() -> None:
    result = verdict(waiter(0, printed=True, quiet=0.0), waiter(1), waiter(2), rank(3, stack=LOOP))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [3])


BELOW = ("/home/me/train.py:12 <module>",)


def test_ranks_that_all_wait_in_one_line_outside_collectives_have_no_culprit() -> None:
    result = verdict(*(rank(n, stack=LOOP) for n in range(3)))
    assert (result.verdict, result.message, result.culprits) == (
        Verdict.WAITING,
        "all 3 ranks wait outside of collectives, all at train.py:33 (work)",
        (),
    )


@pytest.mark.parametrize(
    ("stacks", "apart"),
    [
        ((LOOP, BELOW, LOOP, LOOP), ": ranks 0 and 2-3 at train.py:33 (work), rank 1 alone at train.py:12"),
        ((LOOP, BELOW, BELOW, LOOP), ""),
        ((LOOP, BELOW), ""),
        ((LOOP, LOOP, BELOW, ()), ""),
    ],
)
def test_the_different_one_of_ranks_outside_collectives_is_reported_without_blame(
    stacks: tuple[tuple[str, ...], ...], apart: str
) -> None:
    result = verdict(*(rank(number, stack=stack) for number, stack in enumerate(stacks)))
    assert (result.verdict, result.culprits) == (Verdict.WAITING, ())
    message = f"{apart}. Either they wait for it, or it waits for them" if apart else ""
    assert result.message == f"all {len(stacks)} ranks wait outside of collectives{message}"


def test_ranks_that_compute_outside_of_collectives_are_well() -> None:
    result = verdict(*(rank(n, stack=LOOP, busy=1.0) for n in range(3)))
    assert (result.verdict, result.culprits) == (Verdict.NOTHING, ())


def test_the_different_rank_is_named_without_records() -> None:
    bare = [rank(n, groups=(), records=(), stack=MEETING) for n in (0, 1, 2)]
    result = verdict(*bare, rank(3, groups=(), records=(), stack=LOOP))
    assert (result.verdict, blamed(result)) == (
        Verdict.NEVER_ARRIVED,
        [(3, "n1", "it waits in user code at train.py:33 (work)")],
    )


def test_nodes_without_answers_are_named_if_the_others_wait_for_their_ranks() -> None:
    result = verdict(waiter(0), waiter(1), size=4, mute=(("n1", "no answer within 11 s"),))
    assert (result.verdict, blamed(result)) == (Verdict.NEVER_ARRIVED, [(-1, "n1", "no answer within 11 s")])


def test_a_stall_that_was_watched_from_outside_needs_no_patience() -> None:
    young = record(11, done=False, at=NOW - 0.5)
    observed = [waiter(0, 2, records=(*history(10), young)), rank(1, 2, stack=LOOP, busy=1.0)]
    judged = decide(case(*observed, stalled=600.0))
    assert judged.certain
    assert (judged.diagnosis.verdict, [c.rank for c in judged.diagnosis.culprits]) == (
        Verdict.NEVER_ARRIVED,
        [1],
    )
    assert "nothing has moved for 600 s" in judged.diagnosis.evidence


def test_nothing_seen_is_undetermined() -> None:
    result = decide(case(size=2, mute=(("n0", "lost"),))).diagnosis
    assert (result.verdict, result.evidence) == (Verdict.UNDETERMINED, ("no answer from n0: lost",))


def test_each_stopped_rank_is_named_with_its_remedy_and_other_late_ranks() -> None:
    result = verdict(waiter(0), rank(1, state="T"), rank(2, state="T"), rank(3, stack=LOOP))
    assert result.message == (
        "ranks 1-2 never came to all_reduce (call 11 of group 0): each: it is stopped (SIGSTOP)"
    )
    assert blamed(result) == [(1, "n0", "it is stopped (SIGSTOP)"), (2, "n1", "it is stopped (SIGSTOP)")]
    assert result.evidence[1] == (
        "rank 3 on n1 has not come either: it waits in user code at train.py:33 (work)"
    )
    assert result.remedy == (
        "on n0: kill -CONT 101, or find out who stopped it; on n1: kill -CONT 102, or find out who stopped it"
    )


def test_the_report_asks_about_a_subgroup_if_few_arrived_and_the_others_share_a_line() -> None:
    result = verdict(waiter(0), *(rank(number, stack=LOOP) for number in (1, 2, 3)))
    assert [culprit.rank for culprit in result.culprits] == [1, 2, 3]
    assert result.remedy.endswith(
        "or is all_reduce at train.py:11 (step) called by rank 0 only, where every rank must call it?"
    )
    loading = verdict(waiter(0), *(rank(number, stack=LOADER) for number in (1, 2, 3)))
    assert [culprit.rank for culprit in loading.culprits] == [1, 2, 3]
    assert "rank 0 only" not in loading.remedy


def test_a_call_is_not_taken_for_that_of_one_rank_if_others_show_no_record_but_are_in_it() -> None:
    inside = (rank(number, stack=ALL_REDUCE) for number in (2, 3))
    result = verdict(waiter(0), rank(1, stack=LOOP), *inside)
    assert [culprit.rank for culprit in result.culprits] == [1]
    assert "only" not in result.remedy


def test_the_rank_that_uses_two_groups_in_an_unusual_order_is_named() -> None:
    def inside(number: int, begun: str) -> RankSnapshot:
        groups = tuple(Group(name, 4, int(name == begun), False, "gloo", "0-3") for name in "ab")
        return rank(number, groups=groups, records=(record(1, False, group=begun),), stack=ALL_REDUCE)

    result = verdict(inside(0, "a"), inside(1, "a"), inside(2, "b"), inside(3, "a"))
    why = "it is in all_reduce at train.py:11 (step), without ranks 0-1 and 3"
    assert (result.verdict, blamed(result)) == (Verdict.MISMATCH, [(2, "n1", why)])


def test_a_number_that_counts_sends_too_hides_no_rank_that_has_not_come() -> None:
    """gloo's number of a group grows with each send and receive; the records' own does not."""
    sends = (Group("0", 4, 15, True, "gloo", "0-3"),)
    result = verdict(waiter(0), rank(1, groups=sends, stack=LOOP), waiter(2), waiter(3))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [1])


def test_a_rank_that_has_only_sent_so_far_has_not_come_to_the_first_collective() -> None:
    """A pipeline that ends in a barrier: its sends are more than the barriers that anybody has begun."""
    groups = (Group("0", 3, 24, True, "gloo", "0-2"),)
    first = (record(1, done=False, operation="barrier"),)
    waits = [rank(number, 3, groups=groups, records=first, stack=BARRIER) for number in (0, 1)]
    late = rank(2, 3, groups=groups, records=(), stack=LOOP)
    result = verdict(*waits, late, stalled=60.0)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [2])


def test_each_absent_rank_is_reported_with_its_own_reason() -> None:
    other = ("/home/me/train.py:50 warm", "/home/me/train.py:60 <module>")
    result = verdict(waiter(0), rank(1, stack=LOOP), waiter(2), rank(3, stack=other), stalled=60.0)
    assert result.message == (
        "ranks 1 and 3 never came to all_reduce (call 11 of group 0): "
        "rank 1: it waits in user code at train.py:33 (work); "
        "rank 3: it waits in user code at train.py:50 (warm)"
    )


def test_ended_ranks_are_reported_separately_from_waiting_ones() -> None:
    result = verdict(rank(0, stack=LOOP), rank(1, state=""), rank(2, stack=LOOP), rank(3, stack=LOOP))
    assert (
        result.message == "all 3 ranks that are left wait outside of collectives, all at train.py:33 (work)"
    )
    assert result.evidence[-1] == "rank 1 has ended"
    alone = verdict(rank(0, stack=LOOP), *(rank(number, state="") for number in (1, 2, 3)))
    assert alone.message == ("rank 0, the only one left, waits outside of collectives, at train.py:33 (work)")


# --- calls that are left out, worlds that do not fit, what no record tells ---


def subgroup(number: int, size: int, few: int, **changes: object) -> RankSnapshot:
    """Return a rank in a world of ``size`` whose first ``few`` ranks share a group ``1``."""
    groups = [Group("0", size, 8, True, "gloo", f"0-{size - 1}")]
    groups += [Group("1", few, 0, False, "gloo", f"0-{few - 1}")] if number < few else []
    return rank(number, size, 8, groups=tuple(groups), **changes)


@pytest.mark.parametrize(("size", "few"), [(3, 2), (4, 2), (4, 3), (8, 4), (64, 8)])
def test_a_rank_that_skips_a_subgroups_barrier_is_named_and_not_the_waiting_one(size: int, few: int) -> None:
    for skips in range(few):
        observed = []
        for number in range(size):
            waits = number < few and number != skips
            inside = record(1, False, "barrier", "", "", group="1") if waits else record(9, False)
            stack = BARRIER if waits else ALL_REDUCE
            observed.append(subgroup(number, size, few, records=(*history(8), inside), stack=stack))
        result = verdict(*observed)
        if few == 2:  # one of two left it out, or the other one made it too often
            assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
            assert f"either rank {skips} left out barrier of group 1" in result.message
            continue
        assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [skips])
        assert "has not called barrier of group 1" in result.culprits[0].why


@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_rank_that_does_not_answer_a_send_is_named_or_both_sides_if_it_progressed(call: str) -> None:
    """Rank 0 waits for rank 1, which is in an all_reduce, in its own code, or in another send."""
    half = {"send": "recv from rank 0", "recv": "send to rank 0"}[call]
    waits = rank(0, stack=ALL_REDUCE, call=call, peer=1)
    went_on = verdict(waits, waiter(1), waiter(2), waiter(3))
    assert (went_on.verdict, went_on.culprits) == (Verdict.MISMATCH, ())
    assert f"either rank 1 left out {half}, or rank 0 made a call too many" in went_on.message
    sleeps = verdict(waits, rank(1, stack=LOOP), waiter(2), waiter(3))
    assert (sleeps.verdict, [culprit.rank for culprit in sleeps.culprits]) == (Verdict.NEVER_ARRIVED, [1])
    assert sleeps.message.startswith("rank 1 on n0 never came to all_reduce (call 11 of group 0): ")
    alone = verdict(waits, rank(1, stack=LOOP), stalled=60.0)
    assert alone.message.startswith(f"rank 1 on n0 never called {half}: ")


def test_a_send_that_its_receiver_waits_for_blames_neither() -> None:
    both = [
        rank(0, 2, stack=ALL_REDUCE, call="send", peer=1),
        rank(1, 2, stack=ALL_REDUCE, call="recv", peer=0),
    ]
    result = verdict(*both, stalled=60.0)
    assert result.culprits == ()
    assert "rank 0 waits in send to rank 1 at train.py:11 (step)" in result.evidence


@pytest.mark.parametrize("tags", [(5, 6), (0, 3), (7, 0), (4, 4)])
def test_a_send_and_its_recv_with_different_tags_are_reported(tags: tuple[int, int]) -> None:
    result = verdict(
        rank(0, stack=ALL_REDUCE, call="send", peer=1, tag=tags[0]),
        rank(1, stack=ALL_REDUCE, call="recv", peer=0, tag=tags[1]),
        waiter(2),
        waiter(3),
        stalled=60.0,
    )
    if tags[0] == tags[1]:
        assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
        return
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [0, 1])
    assert result.message == f"rank 0 sends with tag {tags[0]} what rank 1 wants with tag {tags[1]}"


@pytest.mark.parametrize(
    ("worlds", "wrong"), [((4, 2, 0, 0), [1]), ((4, 4, 4, 1), [3]), ((3, 3, 3, 1), []), ((2, 2, 2, 2), [])]
)
def test_a_rank_that_joined_a_smaller_world_is_named(worlds: tuple[int, ...], wrong: list[int]) -> None:
    """Groups of one design, all smaller than the world, are nobody's fault; 0: it waits for all."""
    observed = [
        waiter(number, started=4, groups=(Group("0", size, 11, True, "gloo"),))
        if size
        else rank(number, started=4, world=4, groups=(), records=(), stack=MEETING)
        for number, size in enumerate(worlds)
    ]
    result = verdict(*observed, stalled=60.0)
    if wrong:
        assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, wrong)
        assert f"world of {worlds[wrong[0]]} ranks, and was started as one of 4" in result.culprits[0].why
    else:
        assert "world of" not in str(result)


@pytest.mark.parametrize(
    ("worlds", "wrong"),
    [((5, 5, 5, 5), [0, 1, 2, 3]), ((4, 5, 4, 4), [1]), ((4, 4, 2, 4), [2]), ((0, 5, 0, 0), [1])],
)
def test_ranks_that_ask_for_another_world_than_they_were_started_in_are_named(
    worlds: tuple[int, ...], wrong: list[int]
) -> None:
    observed = [
        rank(n, groups=(), records=(), stack=MEETING, world=world, started=4 if world else 0)
        for n, world in enumerate(worlds)
    ]
    result = verdict(*observed)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, wrong)
    assert "and was started as one of 4" in result.culprits[0].why


@pytest.mark.parametrize("worlds", [(4, 4, 4, 4), (2, 2, 2, 2)])
def test_equal_worlds_not_larger_than_the_run_are_no_mistake(worlds: tuple[int, ...]) -> None:
    observed = [
        rank(n, groups=(), records=(), stack=MEETING, world=world, started=4)
        for n, world in enumerate(worlds)
    ]
    assert verdict(*observed).verdict is Verdict.UNDETERMINED


def test_a_rank_whose_process_a_thread_keeps_alive_is_named() -> None:
    held = rank(2, stack=("/usr/lib/python3.11/threading.py:1590 _shutdown",))
    result = verdict(rank(0, state=""), rank(1, state=""), held, rank(3, state=""))
    assert blamed(result) == [(2, "n1", "its script has ended, and its process has not")]
    assert "the others have ended" in result.message


def on_gpus(number: int, begun: int, **changes: object) -> RankSnapshot:
    """Return a rank that spins while its GPU waits, with a torch that keeps no records."""
    groups = (Group("0", 4, begun, True, "nccl", "0-3"),)
    return rank(number, groups=groups, records=(), stack=LOOP, busy=1.0, state="R", **changes)


@pytest.mark.parametrize("behind", range(4))
def test_the_groups_own_counts_name_the_late_rank_without_records(behind: int) -> None:
    observed = [on_gpus(n, 11 if n == behind else 12) for n in range(4)]
    result = verdict(*observed, stalled=300.0)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (
        Verdict.NEVER_ARRIVED,
        [behind],
    )
    assert "have waited 300 s in a collective (call 12 of group 0)" in result.evidence[0]


def test_a_stall_of_ranks_that_may_spin_is_never_called_nothing_wrong() -> None:
    result = verdict(*(on_gpus(n, 12) for n in range(4)), stalled=300.0)
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
    assert "it computes, or waits for its GPU" in result.message


def at_barrier(
    number: int, waited: float, before: tuple[float, float], doing: tuple[str, ...] = ()
) -> RankSnapshot:
    """Return a rank of four. Rank 0 came to the last two barriers ``before`` seconds after the others."""
    late = before if number == 0 else (0.0, 0.0)
    first, second, third = NOW - 200, NOW - 100, NOW - waited
    records = [record(1, at=first - 1), record(2, operation="barrier", at=first + late[0])]
    records += [record(3 + n, at=first + 30 + n) for n in range(70)]
    records += [record(73, operation="barrier", at=second + late[1])]
    records += [record(74 + n, at=second + 30 + 0.1 * n) for n in range(70)]
    if doing:
        return rank(number, begun=143, records=tuple(records), stack=doing, busy=0.9, state="R")
    records.append(record(144, done=False, operation="barrier", at=third))
    return waiter(number, begun=144, records=tuple(records), stack=BARRIER)


@pytest.mark.parametrize(
    ("waited", "before", "patience"),
    [
        (6.0, (0.0, 0.0), 10.0),
        (9.0, (0.0, 0.0), 10.0),
        (11.0, (0.0, 0.0), 10.0),
        (11.0, (15.0, 0.0), 10.0),
        (21.0, (15.0, 16.0), 22.5),
        (24.0, (15.0, 16.0), 22.5),
        (40.0, (30.0, 35.0), 45.0),
    ],
)
@pytest.mark.parametrize("blamed", [0, 1])
@pytest.mark.parametrize(
    ("busy", "least", "doing"), [(0.9, 20.0, "it is busy in"), (0.0, 10.0, "it waits in")]
)
def test_a_rank_that_evaluates_for_all_is_not_blamed_within_its_usual_time(
    waited: float,
    before: tuple[float, float],
    patience: float,
    blamed: int,
    busy: float,
    least: float,
    doing: str,
) -> None:
    """Rank 1, which never did, gets no longer than any rank does.

    One that computes gets twenty seconds, and then nothing shows whether that is long work.
    """
    patience = max(least, patience if blamed == 0 else 0.0)
    observed = [at_barrier(number, waited, before, LOOP if number == blamed else ()) for number in range(4)]
    observed[blamed] = changed(observed[blamed], busy=busy)
    judged = decide(case(*observed))
    is_blamed = waited > patience and not busy
    assert [culprit.rank for culprit in judged.diagnosis.culprits] == [blamed] * is_blamed
    if waited > patience and busy:
        assert judged.diagnosis.verdict is Verdict.UNDETERMINED
    if waited < patience:
        assert judged.diagnosis.verdict is Verdict.NOTHING
        why = f"rank {blamed} on n0: {doing} user code at train.py:33 (work)"
        assert why in judged.diagnosis.evidence[1]
        assert judged.later == pytest.approx(patience - waited)


IMPORTS = (f"{LIBRARY}/torch/__init__.py:409 <module>", "<frozen importlib._bootstrap>:1176 _find_and_load")


@pytest.mark.parametrize(("quiet", "blamed_ranks"), [(15.0, []), (50.0, []), (70.0, [1])])
@pytest.mark.parametrize(
    "changes",
    [
        {"stack": IMPORTS},
        {"stack": IMPORTS, "groups": (Group("0", 2, 0, True, "gloo", "0-1"),)},
        {"stack": LOOP, "busy": 0.9, "groups": ()},
    ],
)
def test_ranks_that_import_or_prepare_data_get_a_minute(
    quiet: float, blamed_ranks: list[int], changes: dict[str, Any]
) -> None:
    """Seen on a crowded machine: torch took a quarter of a minute to import, and rank 0 waited."""
    late = rank(1, 2, begun=0, quiet=quiet, **{"groups": (), **changes})
    result = verdict(rank(0, 2, begun=0, quiet=quiet, groups=(), stack=MEETING), late)
    if "busy" not in changes:
        assert [culprit.rank for culprit in result.culprits] == blamed_ranks
    else:
        assert result.verdict is (Verdict.UNDETERMINED if blamed_ranks else Verdict.NOTHING)
    stalled = verdict(rank(0, 2, begun=0, groups=(), stack=MEETING), late, stalled=12.0)
    assert [culprit.rank for culprit in stalled.culprits] == [1]


def test_a_rank_that_an_atexit_function_holds_is_named_though_that_is_the_users() -> None:
    """Its stack has no frame of the script any more. The other ranks have ended or wait for it."""
    held = rank(1, stack=("/usr/lib/python3.11/queue.py:90 join", "/home/me/train.py:10 drain"))
    why = "its script has ended, and its process has not; it is at train.py:10 (drain)"
    ended = [rank(number, state="", stack=(), answered=False) for number in (0, 2)]
    wait = [waiter(number, stack=BARRIER) for number in (0, 2)]
    for others in (ended, wait):
        result = verdict(others[0], held, others[1], stalled=60.0)
        assert blamed(result) == [(1, "n0", why)]
        assert result.certainty == 60


def test_ranks_that_are_too_busy_to_answer_are_not_called_hung() -> None:
    silent = [
        rank(n, groups=(), records=(), stack=ALL_REDUCE, answered=False, problem="no answer in time")
        for n in range(4)
    ]
    assert verdict(*silent).verdict is Verdict.NOTHING
    assert verdict(*silent, stalled=60.0).verdict is Verdict.UNDETERMINED


def of_pipeline(number: int, sent: int, **changes: Any) -> RankSnapshot:
    """Return a rank of three after ten collectives and ``sent`` sends and receives, which gloo counts too."""
    begun = 10 if changes else 11
    groups = (Group("0", 3, begun + sent, True, "gloo", "0-2"),)
    return (
        rank(number, 3, groups=groups, **{"stack": BELOW, **changes})
        if changes
        else waiter(number, 3, groups=groups)
    )


def test_two_ranks_that_send_in_turns_are_both_reported_for_an_unanswered_call() -> None:
    result = verdict(of_pipeline(0, 0), of_pipeline(1, 7, call="wait"), of_pipeline(2, 6), stalled=60.0)
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message == (
        "rank 1 waits in a send or receive at train.py:12 for rank 2, in all_reduce at train.py:11 (step): "
        "either rank 2 left out the other half of a send or receive, or rank 1 made a call too many; "
        "nothing shows which"
    )


def test_none_of_several_senders_is_blamed_for_an_unanswered_receive() -> None:
    result = verdict(of_pipeline(0, 3), of_pipeline(1, 7, call="wait"), of_pipeline(2, 6), stalled=60.0)
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
    assert result.message == "rank 1 waits for a send or receive that is not answered at train.py:12"


@pytest.mark.parametrize(
    ("sent", "behind"),
    [((22, 22, 21, 22), [2]), ((22, 21, 21, 22), []), ((23, 22, 21, 22), []), ((22, 22, 22, 22), [])],
)
def test_the_one_rank_of_a_ring_that_sent_less_is_named(sent: tuple[int, ...], behind: list[int]) -> None:
    observed = [
        waiter(number, groups=(Group("0", 4, 11 + count, True, "gloo", "0-3"),))
        for number, count in enumerate(sent[:3])
    ]
    groups = (Group("0", 4, 10 + sent[3], True, "gloo", "0-3"),)
    result = verdict(*observed, rank(3, call="wait", stack=BELOW, groups=groups), stalled=60.0)
    assert [culprit.rank for culprit in result.culprits] == behind
    assert result.verdict is (Verdict.MISMATCH if behind else Verdict.UNDETERMINED)


def test_a_rank_that_waits_and_has_sent_nothing_waits_for_something_else() -> None:
    result = verdict(of_pipeline(0, 0), of_pipeline(1, 0, call="wait"), of_pipeline(2, 0), stalled=60.0)
    assert [culprit.rank for culprit in result.culprits] == [1]


BROADCAST = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:3151 broadcast", *LOOP)


def in_broadcast(number: int, root: int | None) -> RankSnapshot:
    """Return a rank of four that waits in a broadcast from ``root``; None: in the collective after it."""
    before = (*history(10), record(11, done=root is None, operation="broadcast"))
    if root is None:
        return waiter(number, begun=12, records=(*before, record(12, done=False)))
    return waiter(number, records=before, stack=BROADCAST, rooted="broadcast", root=root)


@pytest.mark.parametrize(
    ("roots", "wrong"),
    [
        ((0, 0, 1, 0), [2]),
        ((1, 0, 0, 0), [0]),
        ((0, None, 1, None), []),  # as seen: a root of few bytes has sent them, and goes on
        ((0, 0, None, 2), []),  # two and two, of whom one has gone on as the root that it named
        ((0, 0, 1, None), [2]),  # rank 1 is there, and no root
        ((0, None, 2, None), []),
        ((0, 0, 1, 2), [2, 3]),
        ((1, 2, 1, 0), []),  # each takes the items of a set in an order of its own
    ],
)
def test_ranks_with_different_roots_of_one_collective_are_reported(
    roots: tuple[int | None, ...], wrong: list[int]
) -> None:
    observed = [in_broadcast(number, root) for number, root in enumerate(roots)]
    result = verdict(*observed, stalled=60.0)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, wrong)
    assert result.message.endswith("nothing shows which is right") is not bool(wrong)
    assert all(
        f"it names rank {roots[culprit.rank]} as the root" in culprit.why for culprit in result.culprits
    )


def test_the_root_that_ranks_in_the_next_call_of_that_line_use_is_the_right_one() -> None:
    """Objects are broadcast in two calls, sizes first: of four ranks two have gone on to the second."""
    first = [in_broadcast(number, root) for number, root in ((0, 0), (2, 2))]
    records = (*history(10), record(11, operation="broadcast"), record(12, done=False, operation="broadcast"))
    later = [
        waiter(number, begun=12, records=records, stack=BROADCAST, rooted="broadcast", root=0)
        for number in (1, 3)
    ]
    result = verdict(first[0], later[0], first[1], later[1], stalled=60.0)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [2])
    assert "ranks 0-1 and 3 name rank 0 at train.py:33 (work); rank 2 names rank 2" in result.message


LOOP_LINE = LOOP[0].partition(" ")[0]


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        (f"{LOOP_LINE} 0", [2]),
        (f"{LOOP_LINE} 2", [0]),
        (f"{LOOP_LINE} 5", []),  # its variables have changed since
        ("/home/me/train.py:12 0", []),  # another call
        ("", []),
        (f"{LOOP_LINE} 0;{LOOP_LINE} 2", []),  # a helper that they have called twice
    ],
)
def test_the_root_in_the_variables_of_ranks_that_progressed_is_the_right_one(
    named: str, wrong: list[int]
) -> None:
    """As seen of gather and scatter with two roots: both wait for each other, and the others have left."""
    observed = [in_broadcast(number, root) for number, root in enumerate((0, None, 2, None))]
    observed = [
        changed(culprit, named=tuple(named.split(";")))
        if culprit.call.root < 0
        else changed(culprit, named=(f"{LOOP_LINE} 5",))
        for culprit in observed
    ]
    result = verdict(*observed, stalled=60.0)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, wrong)


@pytest.mark.parametrize("roots", [(0, 0, 0, 0), (0, -1, 0, -1), (None, None, 1, None)])
def test_ranks_with_one_root_or_an_unknown_one_are_not_blamed(roots: tuple[int | None, ...]) -> None:
    observed = [in_broadcast(number, root) for number, root in enumerate(roots)]
    assert "root of" not in verdict(*observed, stalled=60.0).message


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (ChildProcess(14, "python", "S", stack=LOOP), "waits in user code at train.py:33 (work)"),
        (ChildProcess(14, "python", "T"), "is stopped (SIGSTOP)"),
    ],
)
def test_the_process_outside_collectives_below_a_launcher_per_node_is_reported(
    late: ChildProcess, why: str
) -> None:
    """As py-spy shows them: two ranks on each of two nodes, and a worker of a data-loader."""
    joins = (f"{LIBRARY}/torch/multiprocessing/spawn.py:140 join", "/home/me/train.py:9 <module>")
    worker = (f"{LIBRARY}/torch/utils/data/_utils/worker.py:300 _worker_loop", "/home/me/train.py:9 <module>")
    first = (
        ChildProcess(11, "python", "S", stack=ALL_REDUCE),
        ChildProcess(12, "python", "S", stack=ALL_REDUCE),
    )
    second = (ChildProcess(13, "python", "S", stack=worker), late)
    about: dict[str, Any] = {"records": (), "groups": (), "answered": False, "stack": joins}
    observed = [rank(0, 2, children=first, **about), rank(1, 2, children=second, node="n1", **about)]
    result = verdict(*observed, stalled=60.0)
    assert (result.verdict, blamed(result)) == (Verdict.NEVER_ARRIVED, [(-1, "n1", f"its process 14 {why}")])
    assert result.evidence[0] == "process 11 on n0 waits in all_reduce at train.py:11 (step)"


def test_the_child_processes_of_a_rank_without_a_stack_are_reported() -> None:
    spawned = (ChildProcess(7, "python", "S"), ChildProcess(8, "python", "S"))
    result = verdict(rank(0, 1, records=(), groups=(), answered=False, children=spawned), stalled=60.0)
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
    assert "rank 0 on n0 has started python (process 7), python (process 8)" in result.evidence
    joins = (
        f"{LIBRARY}/torch/multiprocessing/spawn.py:140 ProcessContext.join",
        "/home/me/train.py:9 <module>",
    )
    same = rank(0, 1, records=(), groups=(), answered=False, children=spawned, stack=joins)
    assert verdict(same, stalled=60.0).message == result.message
    alone = verdict(rank(0, 1, records=(), groups=(), stack=LOOP), stalled=60.0)
    assert alone.message == "rank 0 waits outside of collectives, at train.py:33 (work)"


@pytest.mark.parametrize(("busy", "stalled", "named"), [(0.6, 12.0, []), (0.6, 70.0, [1]), (0.0, 12.0, [1])])
def test_a_rank_that_imports_after_a_short_hang_gets_its_minute(
    busy: float, stalled: float, named: list[int]
) -> None:
    """Seen of DDP's first step under load: three ranks came, the fourth still loaded a module of torch's."""
    observed = [waiter(number, begun=1) for number in range(4)]
    observed[1] = rank(1, begun=0, stack=IMPORTS, busy=busy)
    judged = decide(case(*observed, stalled=stalled))
    assert [culprit.rank for culprit in judged.diagnosis.culprits] == named
    assert judged.later == (0.0 if named else 48.0)


@pytest.mark.parametrize("apart", [16, 17, 20])
def test_the_number_of_ranks_without_a_shown_stack_is_reported(apart: int) -> None:
    """Each rank stands in a line of its own."""
    observed = [rank(n, apart, stack=(f"/home/me/train.py:{n + 1} <module>",)) for n in range(apart)]
    result = verdict(*observed, stalled=60.0)
    left_out = {17: "rank 16", 20: "ranks 16-19"}.get(apart)
    messages = [line for line in result.evidence if "stacks are shown" in line]
    assert len(result.groups) == 16
    assert messages == ([f"16 stacks are shown: that of {left_out} is not"] * bool(left_out))


@pytest.mark.parametrize(("since_begun", "named"), [(2.0, []), (9.0, []), (11.0, [1, 2, 3])])
def test_ranks_that_only_send_are_not_blamed_before_a_long_pause(
    since_begun: float, named: list[int]
) -> None:
    """Seen: a parameter server takes from any rank, which no record tells, and the ranks print nothing."""
    others = [rank(number, 4, 0, stack=LOOP) for number in (1, 2, 3)]
    judged = decide(case(rank(0, 4, 0, stack=RECV), *others, since_begun=since_begun))
    assert [culprit.rank for culprit in judged.diagnosis.culprits] == named
    assert judged.later == pytest.approx(0.0 if named else 10.0 - since_begun)


# --- locks of files ---


@pytest.mark.parametrize(
    ("pid", "who", "waits"), [(100, "it", "waits"), (90, "its process 100", "the rank waits")]
)
def test_a_rank_that_waits_in_a_collective_while_it_holds_the_lock_of_a_file_is_named(
    pid: int, who: str, waits: str
) -> None:
    worker = ChildProcess(100, "python", "S")
    records = (*history(10), record(11, False, "barrier"))
    holder = waiter(0, node="n0", pid=pid, stack=BARRIER, records=records, children=(worker,))
    others = [
        rank(number, node="n0", stack=LOOP, lock_holder=100, lock="/data/c.lock") for number in range(1, 4)
    ]
    result = verdict(holder, *others, stalled=60.0)
    why = (
        f"{who} holds the lock of /data/c.lock that ranks 1-3 wait for at train.py:33 (work), and {waits} in "
        "barrier at train.py:20 (step)"
    )
    assert (result.verdict, blamed(result)) == (Verdict.MISMATCH, [(0, "n0", why)])
    # The kernels of other nodes do not list the lock, but their ranks wait in the same line.
    others[2] = rank(3, node="n1", stack=LOOP)
    assert blamed(verdict(holder, *others, stalled=60.0)) == [(0, "n0", why)]


def test_a_rank_that_holds_a_lock_in_the_backward_pass_is_named_too() -> None:
    backward = ("/v/lib/python3.11/site-packages/torch/autograd/graph.py:979 _engine_run_backward", *LOOP)
    worker = ChildProcess(100, "python", "S")
    inside = [
        waiter(number, node="n0", stack=backward, children=(worker,) * (number == 0)) for number in (0, 2, 3)
    ]
    result = verdict(*inside, rank(1, node="n0", stack=LOOP, lock_holder=100), stalled=60.0)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [0])


@pytest.mark.parametrize(
    "holder",
    [
        rank(0, node="n0", pid=100, stack=LOOP, busy=0.98),  # it prepares what they wait for
        rank(0, node="n0", pid=100, stack=LOOP),
        rank(0, node="n9", pid=100, stack=BARRIER),  # that process of another node
    ],
)
def test_a_lock_holder_that_waits_for_nobody_is_not_blamed(holder: RankSnapshot) -> None:
    others = [rank(number, node="n0", stack=LOOP, lock_holder=100) for number in range(1, 4)]
    assert 0 not in [culprit.rank for culprit in verdict(holder, *others, stalled=60.0).culprits]


def test_a_rank_that_waits_for_the_lock_of_an_absent_rank_is_not_blamed() -> None:
    holder = rank(0, node="n0", pid=100, stack=LOOP)
    others = [waiter(2), waiter(3), rank(1, node="n0", pid=101, stack=LOOP, lock_holder=100)]
    assert [culprit.rank for culprit in verdict(holder, *others, stalled=60.0).culprits] == [0]
    # Another process of that number runs on another node.
    holder = replace(holder, node="n9")
    assert [culprit.rank for culprit in verdict(holder, *others, stalled=60.0).culprits] == [0, 1]


def test_the_error_that_a_culprit_handles_is_evidence() -> None:
    handles = "/home/me/train.py:4 load: KeyError: 30"
    late = rank(1, stack=LOOP, handles=handles)
    result = decide(case(waiter(0), late, waiter(2), waiter(3), stalled=60.0)).diagnosis
    block = "rank 1 is in an except or finally block"
    assert f"{block}, after KeyError: 30 at train.py:4 (load)" in result.evidence
