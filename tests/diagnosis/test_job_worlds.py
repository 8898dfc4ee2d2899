"""Jobs that clusterrun did not start: the looks of their nodes become worlds of ranks, and a diagnosis."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from clusterrun.diagnosis.calls import PATIENCE
from clusterrun.diagnosis.evidence import (
    Backlog,
    ChildProcess,
    GroupRequest,
    MainCall,
    PostedOp,
    ProcessSample,
    PythonStacks,
    RankSnapshot,
    ThreadWait,
)
from clusterrun.diagnosis.explain_rank import loop_remedy
from clusterrun.diagnosis.job_looks import NO_PYTHON, NOT_INSTALLED, JobLook, RankName, SeenLauncher, SeenRank
from clusterrun.diagnosis.job_worlds import JobHistory, JobWorld, diagnose_looks, worlds_of
from clusterrun.diagnosis.stacks import ENDED_PYTHON, Doing, ThreadPlace, reads_of_process
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.frozen import replace
from tests.diagnosis.ranks import ALL_REDUCE, BARRIER, LIBRARY, LOOP, MEETING, NOW, RECV

EVERYBODY = MainCall(is_of_all=True)
BACKWARD = ("/venv/lib/torch/autograd/graph.py:979 _engine_run_backward", "/home/me/train.py:7 step", *LOOP)
ELASTIC = (
    "/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1 x",
)


def sampled(
    rank: int,
    node: str = "n0",
    stack: tuple[str, ...] = ALL_REDUCE,
    size: int = 4,
    name: dict[str, Any] | None = None,
    native: tuple[str, ...] = (),
    call: MainCall = EVERYBODY,
    counters: tuple[str, ...] = (),
    moved: bool = False,
    threads: tuple[ThreadPlace, ...] = (),
    **process: Any,
) -> SeenRank:
    """Return a rank whose main thread has not run for 40 s."""
    sample = {"state": "S", "waits_in": "futex", "seconds": 1.0, "idle": 40.0, **process}
    snapshot = RankSnapshot(
        rank,
        node,
        ProcessSample(pid=100 + rank, **sample),
        PythonStacks(stack, "py-spy" if stack else "", threads, native=native),
        call=call,
        clock=NOW,
        quiet=-1.0,
        moved=moved,
    )
    return SeenRank(
        RankName(**{"variable": "RANK", "rank": rank, "size": size, **(name or {})}), snapshot, counters
    )


def looks(*ranks: SeenRank, **nodes: Any) -> list[JobLook]:
    by_node: dict[str, list[SeenRank]] = {}
    for rank in ranks:
        by_node.setdefault(rank.snapshot.node, []).append(rank)
    return [JobLook(node, NOW, tuple(members), processes=9, **nodes) for node, members in by_node.items()]


def verdict(*ranks: SeenRank, mute: tuple[tuple[str, str], ...] = ()) -> Diagnosis:
    return diagnose_looks(looks(*ranks), mute, JobHistory()).diagnosis


def blamed(diagnosis: Diagnosis) -> list[tuple[int, str]]:
    return [(culprit.rank, culprit.node) for culprit in diagnosis.culprits]


# --- one rank is absent ---


def test_functions_that_cloudpickle_brought_are_the_users() -> None:
    pickled = ("<dynamic-code>:27 Job.__call__", f"{LIBRARY}/submitit/core/utils.py:137 result")
    waiting = [sampled(rank, stack=(ALL_REDUCE[0], *pickled)) for rank in range(3)]
    diagnosis = verdict(*waiting, sampled(3, stack=(BARRIER[0], *pickled)))
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.MISMATCH, [(3, "n0")])


@pytest.mark.parametrize(
    ("peer", "retries", "culprits"),
    [("10.0.0.2", 7, [-1, -1]), ("10.0.0.2", 2, [3]), ("10.9.9.9", 7, [3])],
    ids=["cut", "busy", "to another server"],
)
def test_no_rank_is_blamed_for_a_broken_link_between_nodes_of_the_job(
    peer: str, retries: int, culprits: list[int]
) -> None:
    others = [sampled(rank, addresses=("10.0.0.1",)) for rank in range(3)]
    late = sampled(3, "n1", LOOP, addresses=("10.0.0.2",))
    owes = replace(others[0].snapshot.process, backlog=(Backlog(peer, 96, retries),))
    others[0] = replace(others[0], snapshot=replace(others[0].snapshot, process=owes))
    diagnosis = verdict(*others, late)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert (diagnosis.verdict is Verdict.LINK) == (culprits == [-1, -1])


def test_the_rank_outside_of_the_collective_is_named_with_its_line_and_certainty() -> None:
    diagnosis = verdict(sampled(0), sampled(1), sampled(2, "n1"), sampled(3, "n1", LOOP))
    assert (diagnosis.verdict, blamed(diagnosis), diagnosis.certainty) == (
        Verdict.NEVER_ARRIVED,
        [(3, "n1")],
        60,
    )
    assert diagnosis.culprits[0].why == "it waits in user code at train.py:33 (work)"
    assert diagnosis.evidence == (
        "ranks 0-2 have waited at least 40 s in all_reduce at train.py:11 (step), for rank 3",
    )


@pytest.mark.parametrize(
    ("waits_in", "what"),
    [
        ("anon_pipe_write", ", to write into a pipe that nobody empties"),
        ("wait_for_partner", ", for the other end of a FIFO"),
        ("flock_lock_inode_wait", ", for the lock of a file"),
        ("do_sigtimedwait", ", for a signal"),
        ("futex_do_wait", ""),
    ],
)
def test_the_kernel_names_what_a_rank_waits_for(waits_in: str, what: str) -> None:
    diagnosis = verdict(*map(sampled, range(3)), sampled(3, stack=LOOP, waits_in=waits_in))
    assert diagnosis.culprits[0].why == f"it waits in user code at train.py:33 (work){what}"


@pytest.mark.parametrize(("quiet", "blames"), [(3.0, False), (39.0, True), (math.inf, True)])
def test_a_rank_that_computes_is_not_blamed_if_the_job_prints_while_the_others_wait(
    quiet: float, blames: bool
) -> None:
    computes = sampled(3, stack=LOOP, busy=1.0, state="R", idle=0.0)
    counts = replace(sampled(3, stack=LOOP, idle=0.1), numbers=("i=9",), before=("i=3",))
    for late in (computes, counts):
        diagnosis = diagnose_looks(looks(*map(sampled, range(3)), late), (), JobHistory(), quiet).diagnosis
        assert diagnosis.verdict is (Verdict.UNDETERMINED if blames else Verdict.NOTHING)
        assert blames or diagnosis.message == "the others wait for rank 3, still printing"
    sleeps = looks(*map(sampled, range(3)), sampled(3, stack=LOOP))
    assert blamed(diagnose_looks(sleeps, (), JobHistory(), quiet).diagnosis) == [(3, "n0")]


def test_the_process_that_a_rank_waits_for_is_shown_with_its_line() -> None:
    library = "/usr/lib/python3.11/multiprocessing"
    works = ("/home/me/env.py:4 physics", f"{library}/process.py:108 run", *LOOP)
    fork_that_waits = (f"{library}/queues.py:103 get", f"{library}/process.py:108 run", *LOOP)
    children = tuple(
        ChildProcess(7 + place, "python", "R", stack=stack)
        for place, stack in enumerate((fork_that_waits, works))
    )
    receives = (f"{library}/connection.py:395 _recv", f"{library}/connection.py:250 recv", *LOOP)
    assert reads_of_process(receives)
    diagnosis = verdict(*map(sampled, range(3)), sampled(3, stack=receives, children=children))
    assert diagnosis.culprits[0].why == (
        "it waits in user code at train.py:33 (work); its worker 8 runs at env.py:4 (physics)"
    )


@pytest.mark.parametrize(
    ("inner", "what"),
    [
        (("threading.py:1119 Thread.join", "multiprocessing/queues.py:220 Queue._finalize_join"), "put more"),
        (("ssl.py:1166 SSLSocket.read",), "in user code at train.py:33"),
        ((), "for processes whose stacks cannot be read"),
    ],
)
def test_a_process_that_a_rank_joins_is_named_with_the_queue_that_it_cannot_hand_over(
    inner: tuple[str, ...], what: str
) -> None:
    library = "/usr/lib/python3.11"
    joins = (f"{library}/multiprocessing/popen_fork.py:27 Popen.poll", *LOOP)
    ends = tuple(f"{library}/{frame}" for frame in inner)
    stack = (*ends, f"{library}/multiprocessing/process.py:317 BaseProcess._bootstrap", *LOOP) if ends else ()
    diagnosis = verdict(
        sampled(0, stack=joins, size=1, children=(ChildProcess(7, "python", "S", stack=stack),))
    )
    assert what in " ".join((diagnosis.message, *diagnosis.evidence))
    assert diagnosis.culprits == ()


def test_a_rank_that_is_not_late_for_long_may_yet_come() -> None:
    judgement = diagnose_looks(
        looks(sampled(0, idle=3.0, size=2), sampled(1, stack=LOOP, size=2)), (), JobHistory()
    )
    assert (judgement.certain, judgement.diagnosis.culprits) == (False, ())
    assert judgement.diagnosis.verdict is Verdict.NOTHING


@pytest.mark.parametrize(("idle_seconds", "is_certain"), [((40.0, -1.0), True), ((-1.0, -1.0), False)])
def test_ranks_of_which_the_kernel_forgot_when_they_ran_hold_no_diagnosis_up(
    idle_seconds: tuple[float, float], is_certain: bool
) -> None:
    waiting = [sampled(rank, idle=idle, size=3) for rank, idle in enumerate(idle_seconds)]
    judgement = diagnose_looks(looks(*waiting, sampled(2, stack=LOOP, size=3)), (), JobHistory())
    assert judgement.certain is is_certain
    assert blamed(judgement.diagnosis) == ([(2, "n0")] if is_certain else [])


def test_a_polling_rank_is_blamed_after_a_long_time_in_one_place() -> None:
    """Waiting ranks that run now and then have no time since which they wait: the looks give one."""
    history = JobHistory()
    ranks = (*(sampled(rank, idle=0.0, size=3) for rank in (0, 1)), sampled(2, stack=LOOP, size=3))
    first = diagnose_looks(looks(*ranks), (), history)
    later = [SeenRank(rank.name, replace(rank.snapshot, clock=NOW + 30), rank.counters) for rank in ranks]
    second = diagnose_looks(looks(*later), (), history)
    assert (first.certain, blamed(first.diagnosis)) == (False, [])
    assert blamed(second.diagnosis) == [(2, "n0")]


@pytest.mark.parametrize("state", ["T", "t"])
@pytest.mark.parametrize("stack", [(), LOOP, ALL_REDUCE])
def test_a_stopped_rank_is_named_wherever_it_was_stopped(state: str, stack: tuple[str, ...]) -> None:
    diagnosis = verdict(sampled(0), sampled(1, stack=stack, state=state), sampled(2), sampled(3))
    assert (blamed(diagnosis), diagnosis.certainty) == ([(1, "n0")], 100)
    assert diagnosis.evidence[0].startswith("ranks 0 and 2-3 have waited at least 40 s in all_reduce")


def test_a_rank_without_a_process_is_named_with_the_node_it_belongs_to() -> None:
    diagnosis = verdict(sampled(0), sampled(1), sampled(3, "n1"))
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.NEVER_ARRIVED, [(2, "n1")])
    assert diagnosis.culprits[0].why == "it has no process: it has ended, or was never started"
    assert diagnosis.certainty == 70


@pytest.mark.parametrize(("layout", "node"), [("3,1", "n0"), ("2(x2)", "n1"), ("1,3", "")])
def test_a_rank_without_a_process_belongs_to_the_node_that_the_layout_of_the_step_gives_it(
    layout: str, node: str
) -> None:
    ranks = [
        sampled(rank, home, name={"task": rank, "layout": layout})
        for rank, home in ((0, "n0"), (1, "n0"), (3, "n1"))
    ]
    assert blamed(verdict(*ranks)) == [(2, node)]


def test_ranks_on_a_node_that_did_not_answer_are_not_called_ended_but_the_node_is_named() -> None:
    diagnosis = verdict(sampled(0), sampled(1), mute=(("n1", "within 21 s"),))
    assert blamed(diagnosis) == [(-1, "n1")]
    assert diagnosis.message == "the others wait for ranks 2-3; n1 did not answer"
    late = verdict(sampled(0), sampled(1, stack=LOOP), mute=(("n1", "within 21 s"),))
    assert (blamed(late), "no answer from n1: within 21 s" in late.evidence) == ([(1, "n0")], True)


def test_ranks_in_the_backward_pass_wait_by_their_native_frames() -> None:
    backward = ("c10d::Work::wait", "c10d::Reducer::finalize_backward")
    line = (
        "/venv/lib/python3.11/site-packages/torch/autograd/graph.py:1 _engine_run_backward",
        "/home/me/train.py:7 x",
    )
    waiting = [sampled(rank, stack=line, native=backward) for rank in range(3)]
    diagnosis = verdict(*waiting, sampled(3, stack=LOOP))
    assert blamed(diagnosis) == [(3, "n0")]
    assert "in the backward pass at train.py:7 (x), for rank 3" in diagnosis.evidence[0]


def test_ranks_that_wait_for_their_gpu_wait_for_the_rank_that_does_not() -> None:
    line = ("/home/me/train.py:7 x",)
    waiting = [sampled(rank, stack=line, native=("cudaStreamSynchronize",), busy=1.0) for rank in range(3)]
    assert blamed(verdict(*waiting, sampled(3, stack=LOOP))) == [(3, "n0")]


def test_ranks_that_receive_from_each_other_are_named_while_others_wait_for_their_gpu() -> None:
    """Seen on an H100: NCCL's receive blocks, and the other ranks wait for the result of a collective."""
    line = ("/home/me/train.py:7 x",)
    waiting = [sampled(rank, stack=line, native=("cudaStreamSynchronize",), busy=1.0) for rank in (1, 2)]
    circle = [sampled(rank, stack=RECV, call=MainCall("recv", "recv", 3 - rank)) for rank in (0, 3)]
    diagnosis = verdict(*waiting, *circle)
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.MISMATCH, [(0, "n0"), (3, "n0")])


def test_ranks_that_move_do_not_hang() -> None:
    moves = sampled(0, idle=0.0, moved=True, size=3)
    for others in ([], [sampled(2, stack=LOOP, size=3)]):
        diagnosis = verdict(moves, sampled(1, idle=0.0, stack=LOOP, size=3), *others)
        assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.NOTHING, ())


def test_ranks_that_began_another_call_since_the_last_look_move() -> None:
    """Each waits for a rank that takes three seconds in turn. No single look shows that they get on."""
    history = JobHistory()
    first = [sampled(0, idle=2.0, switches=40, size=3), sampled(1, idle=2.0, switches=40, size=3)]
    late = sampled(2, stack=LOOP, size=3)
    assert not diagnose_looks(looks(*first, late), (), history).certain
    second = [sampled(0, idle=1.0, switches=60, size=3), sampled(1, idle=1.0, switches=60, size=3)]
    second = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 6)) for rank in second]
    judgement = diagnose_looks(looks(*second, late), (), history)
    assert (judgement.diagnosis.verdict, judgement.diagnosis.culprits) == (Verdict.NOTHING, ())
    assert judgement.diagnosis.message == "the ranks are making progress"


def test_a_rank_that_is_found_outside_of_the_collective_of_the_look_before_has_moved() -> None:
    """Each look finds the other rank in the collective."""
    history = JobHistory()
    for number, expected in enumerate(("may yet come", "making progress", "making progress")):
        counts = {"idle": 0.1, "switches": 40 * number}
        stacks = [LOOP if rank == number % 2 else ALL_REDUCE for rank in range(2)]
        ranks = [sampled(rank, stack=stack, size=2, **counts) for rank, stack in enumerate(stacks)]
        late = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 6 * number)) for rank in ranks]
        assert diagnose_looks(looks(*late), (), history).diagnosis.message.endswith(expected)


def test_ranks_seen_twice_in_one_line_that_ran_between_are_looked_at_again() -> None:
    """MPI waits in a busy loop. Its ranks look like ranks that compute in one line for long."""
    for busy, quiet, last in (
        (0.0, math.inf, Verdict.UNDETERMINED),
        (1.0, math.inf, Verdict.UNDETERMINED),
        (1.0, 5.0, Verdict.NOTHING),  # their output grows
    ):
        ranks = [sampled(rank, stack=LOOP, idle=0.0, busy=busy) for rank in range(4)]
        history = JobHistory()
        for clock, expected in ((NOW, Verdict.NOTHING), (NOW + 60, last)):
            later = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
            judgement = diagnose_looks(looks(*later), (), history, quiet)
            assert (judgement.certain, judgement.diagnosis.verdict) == (False, expected)
            assert judgement.diagnosis.culprits == ()


def test_ranks_that_moved_into_different_calls_are_looked_at_again() -> None:
    for stack, certain in ((ALL_REDUCE, True), (BARRIER, False)):
        ranks = [sampled(0, moved=True, size=2), sampled(1, stack=stack, moved=True, size=2)]
        judgement = diagnose_looks(looks(*ranks), (), JobHistory())
        assert (judgement.certain, judgement.diagnosis.verdict) == (certain, Verdict.NOTHING)


POOL = tuple(
    f"/usr/lib/python3.11/multiprocessing/{frame}"
    for frame in ("pool.py:768 ApplyResult.get", "pool.py:367 Pool.map")
)
IDLE = tuple(
    f"/usr/lib/python3.11/multiprocessing/{frame}"
    for frame in (
        "connection.py:430 Connection.recv_bytes",
        "queues.py:365 SimpleQueue.get",
        "pool.py:114 worker",
    )
)


@pytest.mark.parametrize(
    ("worker", "is_lost"), [(IDLE, True), (("/home/me/train.py:3 extract", *IDLE[2:]), False), ((), False)]
)
def test_a_pool_whose_workers_all_wait_for_a_task_has_lost_one(
    worker: tuple[str, ...], is_lost: bool
) -> None:
    children = (ChildProcess(7, "python", "S", stack=IDLE), ChildProcess(8, "python", "S", stack=worker))
    rank = sampled(0, stack=(*POOL, *LOOP), size=1, children=children)
    diagnosis = verdict(rank)
    assert ("its task is lost" in " ".join(diagnosis.evidence)) == is_lost, diagnosis


RUNS_GCC = ("/usr/lib/python3.11/subprocess.py:2004 _try_wait", "/home/me/train.py:9 build", *LOOP)
GCC = (ChildProcess(7, "g++", "S", "pipe_write"), ChildProcess(8, "cc1plus", "R"))
LOADS = (f"{LIBRARY}/torch/utils/data/dataloader.py:1291 _try_get_data", "/home/me/train.py:9 step", *LOOP)
AWAITS = (
    "/usr/lib/python3.11/selectors.py:468 EpollSelector.select",
    "/usr/lib/python3.11/asyncio/base_events.py:1884 BaseEventLoop._run_once",
    *LOOP,
)
DOWNLOADS = ("/usr/lib/python3.11/socket.py:706 SocketIO.readinto", "/home/me/train.py:9 download", *LOOP)
EVALUATES = ("/home/me/train.py:12 evaluate", *LOOP)


@pytest.mark.parametrize(
    ("late", "number", "verdict", "expected"),
    [
        (
            {"stack": RUNS_GCC, "children": GCC, "busy": 0.1},
            3,
            Verdict.NOTHING,
            "compiles, or waits for a busy",
        ),
        (
            {"stack": RUNS_GCC, "children": GCC[:1], "busy": 0.0},
            3,
            Verdict.NEVER_ARRIVED,
            "for g++ (process 7), which waits to write into a pipe that nobody empties",
        ),
        ({"busy": 0.9, "idle": 0.0}, 9, Verdict.UNDETERMINED, "still works (done=3 to 9)"),
        ({"idle": 0.1}, 9, Verdict.UNDETERMINED, "still works (done=3 to 9)"),
        # A simulator, or a machine that answers slowly, sleeps between steps.
        ({"idle": 0.1, "waits_in": "hrtimer_nanosleep"}, 4, Verdict.UNDETERMINED, "done=3 to 4"),
        ({"idle": 0.1}, 3, Verdict.NEVER_ARRIVED, "waits in user code"),
        ({"idle": 0.1, "stack": DOWNLOADS}, 3, Verdict.UNDETERMINED, "still works"),
        ({"idle": 0.1, "state": "D"}, 3, Verdict.UNDETERMINED, "still works"),
        ({"idle": 4.0, "stack": DOWNLOADS}, 3, Verdict.UNDETERMINED, "still works"),
        ({"idle": 1.0, "stack": AWAITS}, 3, Verdict.UNDETERMINED, "still works"),
        ({"idle": 40.0, "stack": AWAITS}, 3, Verdict.NEVER_ARRIVED, "waits for a coroutine"),
        ({"idle": 40.0, "stack": DOWNLOADS}, 3, Verdict.NEVER_ARRIVED, "waits in user code"),
        ({"idle": 0.1, "busy": 0.1, "stack": LOADS, "children": GCC}, 3, Verdict.NOTHING, "may yet come"),
        (
            {"waits_in": "pipe_read", "children": GCC[:1]},
            3,
            Verdict.NEVER_ARRIVED,
            "for g++ (process 7), which waits to write into a pipe that nobody empties",
        ),
    ],
)
def test_a_late_rank_that_shows_progress_is_named_and_not_blamed(
    late: dict[str, Any], number: int, verdict: Verdict, expected: str
) -> None:
    rank = sampled(3, **{"stack": EVALUATES, **late})
    rank = replace(rank, numbers=(f"done={number}",), before=("done=3",))
    judgement = diagnose_looks(looks(*(sampled(number) for number in range(3)), rank), (), JobHistory())
    assert (judgement.diagnosis.verdict, expected in judgement.diagnosis.message) == (verdict, True), (
        judgement
    )
    assert bool(judgement.diagnosis.culprits) == (verdict is Verdict.NEVER_ARRIVED)


@pytest.mark.parametrize(("moved", "expected"), [(True, Verdict.NOTHING), (False, Verdict.UNDETERMINED)])
def test_a_rank_that_counts_is_no_fault_if_earlier_looks_saw_the_job_move(
    moved: bool, expected: Verdict
) -> None:
    history = JobHistory()
    rank = replace(sampled(3, stack=LOADS, idle=0.2), numbers=("i=2",), before=("i=0",))
    ranks = [*(sampled(number, moved=moved) for number in range(3)), rank]
    diagnose_looks(looks(*ranks), (), history)
    still = [replace(seen, snapshot=replace(seen.snapshot, moved=False, clock=NOW + 25)) for seen in ranks]
    diagnosis = diagnose_looks(looks(*still), (), history).diagnosis
    assert (diagnosis.verdict, "i=0 to 2" in diagnosis.message) == (expected, True)


def test_a_busy_rank_that_could_count_is_named_only_after_it_was_seen_to_stay() -> None:
    history = JobHistory()
    late = replace(sampled(3, stack=EVALUATES, busy=1.0, idle=0.0), numbers=("i=3",), before=("i=3",))
    for clock, expected in ((NOW, Verdict.NOTHING), (NOW + 25, Verdict.UNDETERMINED)):
        ranks = [*(sampled(number) for number in range(3)), late]
        ranks_now = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*ranks_now), (), history).diagnosis
        assert (diagnosis.verdict, diagnosis.culprits) == (expected, ())


def test_the_remedy_for_a_busy_loop_with_a_condition_is_that_of_loops() -> None:
    busy = sampled(3, stack=EVALUATES, busy=1.0, idle=0.0)
    stacks = replace(busy.snapshot.stacks, loop="not done")
    looping = replace(busy, snapshot=replace(busy.snapshot, stacks=stacks))
    remedies = [verdict(*map(sampled, range(3)), late).remedy for late in (busy, looping)]
    assert [loop_remedy("not done") in remedy for remedy in remedies] == [False, True]


@pytest.mark.parametrize(("number", "shows"), [(10, "still works (item=3 to 12)"), (5, "an endless loop")])
def test_a_number_that_falls_between_looks_shows_no_progress_of_a_busy_rank(number: int, shows: str) -> None:
    history = JobHistory()
    for clock, before, after in ((NOW, 3, 9), (NOW + 25, number, 12)):
        values = {"numbers": (f"item={after}",), "before": (f"item={before}",)}
        late = replace(sampled(3, stack=EVALUATES, busy=1.0, idle=0.0), **values)
        ranks = [*(sampled(rank) for rank in range(3)), late]
        ranks = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*ranks), (), history).diagnosis
    assert (diagnosis.culprits, shows in diagnosis.message) == ((), True)


@pytest.mark.parametrize(
    ("stack", "used", "verdict"),
    [
        (RUNS_GCC, 2.0, Verdict.UNDETERMINED),
        (RUNS_GCC, 0.1, Verdict.NEVER_ARRIVED),
        (EVALUATES, 2.0, Verdict.NEVER_ARRIVED),
    ],
)
def test_a_rank_whose_program_uses_processor_time_between_looks_is_not_blamed(
    stack: tuple[str, ...], used: float, verdict: Verdict
) -> None:
    history = JobHistory()
    for clock, seconds in ((NOW, 5.0), (NOW + 25, 5.0 + used)):
        child = ChildProcess(7, "python", "S", "hrtimer_nanosleep", used=seconds)
        ranks = [*(sampled(number) for number in range(3)), sampled(3, stack=stack, children=(child,))]
        ranks_now = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*ranks_now), (), history).diagnosis
    assert (diagnosis.verdict, bool(diagnosis.culprits)) == (verdict, verdict is Verdict.NEVER_ARRIVED)


SLEEPS = ChildProcess(7, "bash", "S", "hrtimer_nanosleep", used=5.0)


@pytest.mark.parametrize(
    ("children", "verdict"),
    [
        ((replace(SLEEPS, waits_in="do_wait"), replace(SLEEPS, pid=9)), Verdict.UNDETERMINED),
        ((SLEEPS,), Verdict.NEVER_ARRIVED),
    ],
)
def test_a_rank_whose_program_starts_processes_between_looks_is_not_blamed(
    children: tuple[ChildProcess, ...], verdict: Verdict
) -> None:
    history = JobHistory()
    for clock, below in ((NOW, (SLEEPS, replace(SLEEPS, pid=8))), (NOW + 10, children)):
        ranks = [*(sampled(number) for number in range(3)), sampled(3, stack=RUNS_GCC, children=below)]
        ranks_now = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*ranks_now), (), history).diagnosis
    assert (diagnosis.verdict, bool(diagnosis.culprits)) == (verdict, verdict is Verdict.NEVER_ARRIVED)


@pytest.mark.parametrize(
    ("child", "certain"),
    [
        (SLEEPS, False),
        (replace(SLEEPS, waits_in="do_wait"), False),
        (replace(SLEEPS, waits_in="wait_for_partner"), True),
        (replace(SLEEPS, state="T"), True),
        (replace(SLEEPS, waits_in="pipe_read"), False),
        (replace(SLEEPS, waits_in="pipe_read", waits_for_rank=True), True),
    ],
)
def test_a_rank_that_waits_for_a_program_is_blamed_at_once_only_if_the_program_is_stuck(
    child: ChildProcess, certain: bool
) -> None:
    late = sampled(3, stack=RUNS_GCC, children=(child,))
    judgement = diagnose_looks(looks(*(sampled(number) for number in range(3)), late), (), JobHistory())
    assert (judgement.certain, bool(judgement.diagnosis.culprits)) == (certain, certain)


@pytest.mark.parametrize(("state", "culprits"), [("R", []), ("S", [3])])
def test_a_rank_is_not_blamed_while_a_worker_of_its_pool_computes_on_a_crowded_node(
    state: str, culprits: list[int]
) -> None:
    maps = (
        "/usr/lib/python3.11/threading.py:629 wait",
        "/usr/lib/python3.11/multiprocessing/pool.py:367 map",
        *LOOP,
    )
    worker = ("/home/me/train.py:6 tokenize", "/usr/lib/python3.11/multiprocessing/process.py:108 run")
    late = sampled(3, stack=maps, busy=0.4, children=(ChildProcess(7, "python", state, stack=worker),))
    diagnosis = verdict(*(sampled(number) for number in range(3)), late)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert "at train.py:6 (tokenize)" in str(diagnosis.evidence) + diagnosis.message


def test_a_rank_that_serves_clients_is_not_blamed() -> None:
    late = sampled(3, stack=EVALUATES)
    stacks = replace(late.snapshot.stacks, waits=(ThreadWait("request", EVALUATES[0]),))
    late = replace(late, snapshot=replace(late.snapshot, stacks=stacks))
    diagnosis = verdict(*(sampled(number) for number in range(3)), late)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert "request of a client" in diagnosis.message


@pytest.mark.parametrize(("waits_in", "certain"), [("hrtimer_nanosleep", False), ("pipe_read", True)])
def test_ranks_that_all_sleep_for_some_time_are_looked_at_again(waits_in: str, certain: bool) -> None:
    ranks = [sampled(rank, stack=LOOP, waits_in=waits_in) for rank in range(4)]
    judgement = diagnose_looks(looks(*ranks), (), JobHistory())
    expected = Verdict.WAITING if certain else Verdict.UNDETERMINED
    assert (judgement.diagnosis.verdict, judgement.certain) == (expected, certain)


def test_ranks_that_are_never_seen_in_a_collective_and_get_on_do_not_hang() -> None:
    ranks = [replace(sampled(rank, stack=LOOP, idle=0.0), changed=rank == 2) for rank in range(4)]
    assert verdict(*ranks).message == "the ranks are making progress"


def test_ranks_that_sleep_in_the_backward_pass_wait_there_without_native_frames() -> None:
    stack = (f"{LIBRARY}/torch/autograd/graph.py:979 _engine_run_backward", "/home/me/train.py:7 x")
    hook = (ThreadPlace("/home/me/train.py:60 hook", "/home/me/train.py:61 hook"),)
    assert blamed(verdict(*(sampled(rank, stack=stack) for rank in range(3)), sampled(3, stack=LOOP))) == [
        (3, "n0")
    ]
    loads = (replace(hook[0], begun=True),)
    assert sampled(0, stack=stack, threads=loads).snapshot.location.doing is Doing.COLLECTIVE
    unknown: tuple[dict[str, Any], ...] = ({"threads": hook}, {"busy": 0.9}, {"idle": 0.5})
    for facts in unknown:
        assert sampled(0, stack=stack, **facts).snapshot.location.doing is Doing.USER


def test_a_rank_with_unknown_native_frames_is_not_blamed() -> None:
    """It may wait for the others in C++, as they do."""
    line = ("/home/me/train.py:7 x",)
    waiting = [sampled(rank, stack=line, native=("c10d::Reducer::finalize",)) for rank in (0, 1, 3)]
    unclear = sampled(2, stack=line)
    unclear = replace(unclear, snapshot=replace(unclear.snapshot, problem="its native frames"))
    diagnosis = verdict(*waiting, unclear)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert diagnosis.message.endswith("and it does not end; where rank 2 waits is unknown")


def test_ranks_that_all_poll_for_a_lock_file_wait_unless_one_is_elsewhere() -> None:
    """A build of an extension that was killed leaves its lock file."""
    stack = ("/venv/lib/python3.11/site-packages/torch/utils/file_baton.py:50 FileBaton.wait", *LOOP)
    history = JobHistory()
    ranks = [sampled(rank, stack=stack, idle=0.0, size=3) for rank in range(3)]
    later = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 30)) for rank in ranks]
    for build, expected in (
        (ranks[2], Verdict.WAITING),
        (sampled(2, stack=LOOP, idle=0.0, size=3), Verdict.UNDETERMINED),
    ):
        clock = replace(build, snapshot=replace(build.snapshot, clock=NOW + 30))
        diagnose_looks(looks(*ranks[:2], build), (), history)
        diagnosis = diagnose_looks(looks(*later[:2], clock), (), history).diagnosis
        assert (diagnosis.verdict, diagnosis.culprits) == (expected, ())


def test_a_lock_file_that_is_older_than_the_ranks_is_named_with_its_age() -> None:
    stack = ("/venv/lib/python3.11/site-packages/torch/utils/file_baton.py:50 FileBaton.wait", *LOOP)
    lock = {"lock": "/cache/my ops/lock", "lock_older": 7200.0}
    diagnosis = verdict(*(sampled(rank, stack=stack, **lock) for rank in range(4)))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.WAITING, ())
    assert "lock file /cache/my ops/lock is gone at train.py:33 (work), which is 2 h older" in str(
        diagnosis.evidence
    )
    assert diagnosis.remedy.endswith("rm '/cache/my ops/lock'")
    builds = verdict(*(sampled(rank, stack=stack, **lock) for rank in range(3)), sampled(3, stack=LOOP))
    assert (builds.verdict, "rm" in builds.remedy.split()) == (Verdict.WAITING, False)


def test_the_holder_of_a_lock_that_waits_for_the_others_is_named() -> None:
    waits = [sampled(rank, stack=LOOP, lock_holder=100, lock="/scratch/cache.lock") for rank in (1, 2, 3)]
    diagnosis = verdict(sampled(0, stack=BARRIER), *waits)
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.MISMATCH, [(0, "n0")])
    assert "it holds the lock of /scratch/cache.lock that ranks 1-3 wait for" in diagnosis.message


@pytest.mark.parametrize(("line", "node", "is_named"), [(8, "n0", True), (3, "n0", False), (8, "n1", False)])
def test_a_rank_further_in_the_function_may_hold_the_lock_of_multiprocessing_that_others_wait_for(
    line: int, node: str, is_named: bool
) -> None:
    inside = sampled(0, node, stack=(BARRIER[0], f"/home/me/train.py:{line} save", *LOOP), size=3)
    lock = "/usr/lib/python3.11/multiprocessing/synchronize.py:95 SemLock.__enter__"
    others = [sampled(rank, stack=(lock, "/home/me/train.py:4 save", *LOOP), size=3) for rank in (1, 2)]
    diagnosis = verdict(inside, *others)
    assert diagnosis.message.endswith("(save): it may hold the lock") == is_named, diagnosis
    assert bool(diagnosis.culprits) != is_named


@pytest.mark.parametrize(("switches", "expected"), [(3, Verdict.SLOW), (5000, Verdict.NEVER_ARRIVED)])
@pytest.mark.parametrize("native", [(), ("c10d::Reducer::finalize",)])
def test_a_rank_that_all_looks_find_late_is_slow_if_the_job_steps(
    switches: int, expected: Verdict, native: tuple[str, ...]
) -> None:
    """All looks find the ranks in the same lines. A rank that polls in its call has many more switches."""
    history = JobHistory()
    for number in range(7):
        counts = {"idle": 0.4, "switches": 100 + number * switches}
        stack = LINE if native else ALL_REDUCE
        ranks = [sampled(rank, stack=stack, native=native, **counts) for rank in range(3)] + [
            sampled(3, stack=LOOP, idle=0.2)
        ]
        clock = NOW + 6 * number
        late = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*late), (), history).diagnosis
    assert (diagnosis.verdict, blamed(diagnosis)) == (expected, [(3, "n0")])


@pytest.mark.parametrize(("busy", "expected"), [(0.2, Verdict.SLOW), (0.8, Verdict.UNDETERMINED)])
def test_a_rank_that_computes_in_the_backward_pass_is_slow_if_the_others_idle_there(
    busy: float, expected: Verdict
) -> None:
    history = JobHistory()
    for number in range(5):
        shares = [busy, busy, busy, 1.0]
        ranks = [
            sampled(rank, stack=BACKWARD, idle=0.1, busy=shares[rank], switches=99 * number)
            for rank in range(4)
        ]
        late = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 6 * number)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*late), (), history).diagnosis
    assert (diagnosis.verdict, blamed(diagnosis)) == (expected, [(3, "n0")] * (expected is Verdict.SLOW))


def test_a_rank_that_the_others_await_once_is_not_slow() -> None:
    """It prints for a long time. Then all come to the next collective."""
    history = JobHistory()
    works = sampled(3, stack=LOOP, busy=1.0, state="R", idle=0.0)
    for number in range(9):
        counts = {"idle": 0.4 if number == 8 else 60.0, "switches": 100 + number // 8}
        ranks = [*(sampled(rank, **counts) for rank in range(3)), works]
        late = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 6 * number)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*late), (), history, 1.0).diagnosis
        assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.NOTHING, ())


def test_ranks_that_are_late_in_turn_are_not_slow() -> None:
    history = JobHistory()
    for number in range(8):
        counts = {"idle": 0.4, "switches": 100 + number * 3}
        ranks = [
            sampled(rank, stack=LOOP if rank == number % 4 else ALL_REDUCE, **counts) for rank in range(4)
        ]
        late = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 6 * number)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*late), (), history).diagnosis
    assert diagnosis.culprits == ()


def test_a_rank_that_polls_after_the_end_of_its_script_is_named_by_the_second_look() -> None:
    stack = ("/home/me/train.py:9 flush",)  # an atexit function
    history = JobHistory()
    for clock in (NOW, NOW + 30):
        rank = sampled(0, stack=stack, idle=0.0, size=2)
        rank = replace(rank, snapshot=replace(rank.snapshot, clock=clock))
        diagnosis = diagnose_looks(looks(rank), (), history).diagnosis
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.NEVER_ARRIVED, [(0, "n0")])
    assert "its script has ended, and its process has not" in diagnosis.message


@pytest.mark.parametrize(
    ("function", "verdict"), [("MPI_Send", Verdict.MISMATCH), ("MPI_Allreduce", Verdict.UNDETERMINED)]
)
def test_if_all_ranks_send_none_is_left_that_receives(function: str, verdict: Verdict) -> None:
    history = JobHistory()
    for clock in (NOW, NOW + 60):
        later = [
            sampled(
                rank, stack=LOOP, native=(function,), state="R", busy=0.1, idle=0.0, switches=9000, size=2
            )
            for rank in range(2)
        ]
        later = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in later]
        diagnosis = diagnose_looks(looks(*later), (), history).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (verdict, ())


@pytest.mark.parametrize(("state", "busy"), [("S", 0.1), ("R", 1.0)])
def test_a_rank_whose_python_has_ended_is_named_if_others_wait_in_mpi(state: str, busy: float) -> None:
    history = JobHistory()
    for clock in (NOW, NOW + 60):
        waits = sampled(0, stack=LOOP, native=("MPI_Bcast",), state="R", busy=1.0, idle=0.0, size=2)
        ended = sampled(1, stack=(ENDED_PYTHON,), state=state, busy=busy, idle=0.0, size=2)
        ranks = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in (waits, ended)]
        diagnosis = diagnose_looks(looks(*ranks), (), history).diagnosis
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.NEVER_ARRIVED, [(1, "n0")])
    assert "MPI_Bcast" in diagnosis.message


# --- different calls ---


LINE = ("/home/me/train.py:50 <module>",)
STORE = ("poll", "c10d::TCPStore::wait")
BROADCAST = (ALL_REDUCE[0].replace("all_reduce", "broadcast"), "/home/me/train.py:52 step")


@pytest.mark.parametrize("is_of_all", [True, False])
def test_different_roots_are_compared_in_calls_of_all_ranks_only(is_of_all: bool) -> None:
    roots = [MainCall("", "broadcast", rooted="broadcast", root=root, is_of_all=is_of_all) for root in (0, 2)]
    diagnosis = verdict(*(sampled(rank, stack=BROADCAST, call=roots[rank // 2]) for rank in range(4)))
    assert ("different roots" in diagnosis.message) == is_of_all


@pytest.mark.parametrize("call", [EVERYBODY, MainCall()])
def test_the_one_rank_in_a_different_collective_is_the_culprit(call: MainCall) -> None:
    diagnosis = verdict(*(sampled(rank, call=call) for rank in range(3)), sampled(3, stack=BARRIER))
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.MISMATCH, [(3, "n0")])
    assert diagnosis.culprits[0].why.startswith(
        "it waits in barrier at train.py:20 (step), while ranks 0-2 wait"
    )


@pytest.mark.parametrize(
    "ranks",
    [
        (sampled(0), sampled(1), sampled(2, stack=BARRIER), sampled(3, stack=BARRIER)),
        (
            sampled(0),
            sampled(1),
            sampled(2, stack=BARRIER, call=MainCall()),
            sampled(3, stack=BARRIER, call=MainCall()),
        ),
        (
            *(sampled(rank, stack=BARRIER) for rank in range(3)),
            sampled(3, stack=LINE, native=("c10d::Work::wait",), call=MainCall()),
        ),
        (
            *(sampled(rank, stack=BARRIER) for rank in range(3)),
            sampled(3, stack=LINE, native=STORE, call=MainCall()),
        ),
        (
            *(sampled(rank, stack=LINE, native=STORE, call=MainCall()) for rank in range(3)),
            sampled(3, stack=BARRIER),
        ),
        (*(sampled(rank, stack=BARRIER) for rank in range(3)), sampled(3, call=MainCall())),
        (sampled(0), sampled(1, stack=BARRIER), sampled(2, stack=BROADCAST), sampled(3, stack=BROADCAST)),
    ],
    ids=[
        "two of each",
        "a group is unknown",
        "a work",
        "the store",
        "one past the store",
        "a subgroup",
        "three calls",
    ],
)
def test_nobody_is_blamed_if_stacks_do_not_decide(ranks: tuple[SeenRank, ...]) -> None:
    diagnosis = verdict(*ranks)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert "stacks alone do not show which of them is wrong" in diagnosis.message


def half(rank: int, name: str, peer: int, **options: Any) -> SeenRank:
    stack = (RECV[0].replace("recv", name), *RECV[1:])
    return sampled(rank, stack=stack, call=MainCall(name, name, peer), **options)


@pytest.mark.parametrize(
    "halves", [[half(3, "recv", 0)], [half(2, "recv", 1), half(3, "recv", 2)], [half(1, "recv", 0, size=2)]]
)
@pytest.mark.parametrize("idle", [40.0, 2.0])
def test_a_receive_is_compared_with_the_call_that_its_peer_is_in(halves: list[SeenRank], idle: float) -> None:
    """Ranks that wait for a rank in a receive come after it."""
    halves = [_idle(rank, idle) for rank in halves]
    first, size = halves[0].name.rank, halves[0].name.size
    others = [sampled(rank, stack=BARRIER, idle=idle, size=size) for rank in range(first)]
    diagnosis = verdict(*others, *halves)
    peer = halves[0].snapshot.call.peer
    assert diagnosis.culprits == ()
    is_known = idle > PATIENCE
    assert diagnosis.verdict is (Verdict.MISMATCH if is_known else Verdict.NOTHING)
    either = f"either rank {peer} left out send to rank {first}, or rank {first} made a call too many"
    assert (either in diagnosis.message) is is_known


def test_two_ranks_that_wait_for_each_other_are_compared_whatever_the_others_wait_for() -> None:
    """Ranks 1 and 3 reduce in a group of their own. Rank 1 has not come there."""
    others = [sampled(0, stack=BARRIER), sampled(2, stack=BARRIER), sampled(3, call=MainCall(group="part"))]
    diagnosis = verdict(*others, half(1, "recv", 0))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert "either rank 0 left out send to rank 1, or rank 1 made a call too many" in diagnosis.message


def _idle(rank: SeenRank, idle: float) -> SeenRank:
    process = replace(rank.snapshot.process, idle=idle)
    return replace(rank, snapshot=replace(rank.snapshot, process=process))


@pytest.mark.parametrize("call", [EVERYBODY, MainCall()])
def test_ranks_that_send_to_each_other_are_named_while_the_others_wait_in_a_collective(
    call: MainCall,
) -> None:
    halves = [half(1, "send", 3), half(3, "send", 1)]
    diagnosis = verdict(sampled(0, call=call), sampled(2, call=call), *halves)
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.MISMATCH, [(1, "n0"), (3, "n0")])
    assert "each sends before it receives" in diagnosis.message


def test_the_groups_of_collectives_are_named_if_ranks_wait_in_different_ones() -> None:
    ranks = [sampled(rank, call=MainCall(group="world")) for rank in (0, 2, 3)]
    diagnosis = verdict(*ranks, sampled(1, call=MainCall(group="part")))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert "all_reduce of group world" in diagnosis.message
    assert "all_reduce of group part" in diagnosis.message
    diagnosis = verdict(*ranks, sampled(1, stack=BARRIER, call=MainCall(group="group")))
    assert "of group group" not in diagnosis.message


def test_the_key_that_a_rank_waits_for_and_the_lines_that_set_keys_are_shown() -> None:
    call = MainCall("store", key="w_20_4", sets=("/home/me/train.py:10\tf'w_{step}_{rank}'",))
    ranks = [sampled(rank, stack=BARRIER) for rank in range(3)]
    diagnosis = verdict(*ranks, sampled(3, stack=LINE, native=STORE, call=call))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert "of key w_20_4" in diagnosis.message
    assert "train.py:10 sets f'w_{step}_{rank}'" in diagnosis.message


@pytest.mark.parametrize(
    ("block", "culprits"),
    [("except ValueError", [1, 3]), ("if rank == odd", [1, 3]), ("finally", []), ("", [])],
)
def test_the_ranks_that_an_error_led_elsewhere_are_named(block: str, culprits: list[int]) -> None:
    late = []
    for number in (1, 3):
        rank = sampled(number, stack=BARRIER)
        stacks = replace(rank.snapshot.stacks, block=f"/home/me/train.py:40 main: {block}" if block else "")
        late.append(replace(rank, snapshot=replace(rank.snapshot, stacks=stacks)))
    diagnosis = verdict(sampled(0), sampled(2), *late)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert any("is in the" in line for line in diagnosis.evidence) is bool(block)
    assert ("clusterrun submit" in diagnosis.remedy) is not bool(culprits)


def test_the_root_of_a_broadcast_waits_for_the_culprit_and_others_have_left_it() -> None:
    backward = (f"{LIBRARY}/torch/autograd/graph.py:979 _engine_run_backward", "/home/me/train.py:7 x")
    root = MainCall(function="broadcast", rooted="broadcast", root=0, is_of_all=True)
    others = [sampled(1, stack=backward), sampled(2, stack=BARRIER), sampled(3, stack=backward)]
    assert blamed(verdict(sampled(0, stack=BROADCAST, call=root), *others)) == [(2, "n0")]
    receives = replace(root, root=3)
    assert blamed(verdict(sampled(0, stack=BROADCAST, call=receives), *others)) == []


def in_mpi(rank: int, function: str, root: int = -1, size: int = 4) -> SeenRank:
    rooted = function if root >= 0 else ""
    call = MainCall(function=function, rooted=rooted, root=root, is_of_all=True)
    stack = (f"/home/me/{function}.py:9 step",)
    return sampled(rank, stack=stack, native=(function,), call=call, size=size)


@pytest.mark.parametrize(
    ("function", "root", "late", "culprits"),
    [
        ("MPI_Allreduce", -1, [3], [3]),
        ("MPI_Bcast", 0, [3], []),
        ("MPI_Gather", 0, [0], []),
        ("MPI_Bcast", 0, [0], [0]),
        ("MPI_Bcast", 0, [0, 1, 2], [3]),
        ("MPI_Bcast", 0, [0, 1, 2, 4], []),
    ],
)
def test_ranks_in_a_call_that_others_may_have_left_are_not_blamed(
    function: str, root: int, late: list[int], culprits: list[int]
) -> None:
    """Rank 3 waits in a tree of broadcasts for the rank that left it out, and the others have left it."""
    size = 7 if len(late) > 3 else 4
    ranks = [
        in_mpi(rank, function, root) if rank in late else in_mpi(rank, "MPI_Barrier") for rank in range(size)
    ]
    diagnosis = verdict(*ranks)
    assert diagnosis.verdict is Verdict.MISMATCH
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert "flight records" not in diagnosis.remedy


def test_a_receive_that_no_send_meets_shows_its_tag() -> None:
    receives = sampled(2, stack=LINE, native=("MPI_Recv",), call=MainCall("recv", peer=1, tag=7))
    diagnosis = verdict(*(in_mpi(rank, "MPI_Barrier") for rank in (0, 1, 3)), receives)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert "recv from rank 1 with tag 7" in diagnosis.message
    assert "left out send to rank 2 with tag 7" in diagnosis.message


def test_no_rank_is_left_that_sends_if_all_receive_in_several_lines() -> None:
    master = sampled(0, stack=LINE, native=("MPI_Recv",), call=MainCall("recv"))
    workers = [
        sampled(rank, stack=LOOP, native=("MPI_Recv",), call=MainCall("recv", peer=0)) for rank in (1, 2, 3)
    ]
    diagnosis = verdict(master, *workers)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert "no rank is left that sends" in diagnosis.message
    assert "no rank is left" not in verdict(in_mpi(0, "MPI_Barrier"), *workers).message


def test_pairs_that_send_to_each_other_in_one_line_are_named_together() -> None:
    def sends(rank: int) -> SeenRank:
        return sampled(rank, stack=LINE, native=("MPI_Send",), call=MainCall("send", peer=rank ^ 1), size=6)

    everybody = verdict(*map(sends, range(6)))
    assert (everybody.verdict, everybody.culprits) == (Verdict.MISMATCH, ())
    assert "ranks 0-5 wait for each other" in everybody.message
    some = verdict(*map(sends, range(4)), in_mpi(4, "MPI_Barrier", size=6), in_mpi(5, "MPI_Barrier", size=6))
    assert [culprit.rank for culprit in some.culprits] == [0, 1, 2, 3]


def test_the_lines_that_called_a_helper_tell_the_ranks_of_a_circle_apart() -> None:
    def sends(rank: int) -> SeenRank:
        stack = ("/home/me/train.py:5 exchange", f"/home/me/train.py:{40 + rank} run", *LINE)
        return sampled(rank, stack=stack, call=MainCall("send", peer=rank ^ 1), size=2)

    message = verdict(sends(0), sends(1)).message
    assert "train.py:40 (run)" in message and "train.py:41 (run)" in message


@pytest.mark.parametrize(("target", "culprits"), [(3, [1]), (2, [])])
def test_the_rank_whose_sendrecv_does_not_fit_those_of_the_others_is_named(
    target: int, culprits: list[int]
) -> None:
    ranks = []
    for rank in range(4):
        posts = (
            PostedOp("send", target if rank == 1 else (rank + 1) % 4),
            PostedOp("recv", (rank - 1) % 4),
        )
        ranks.append(sampled(rank, stack=LINE, native=("MPI_Sendrecv",), call=MainCall("wait", posts=posts)))
    diagnosis = verdict(*ranks)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert "no rank is left" not in diagnosis.message


FIT = ("in /home/me/train.py main", "line 48", "turn 2")
PART = MainCall(group="part")


def in_turn(
    rank: int, steps: str, stack: tuple[str, ...] = ALL_REDUCE, call: MainCall = PART, size: int = 4
) -> SeenRank:
    seen = sampled(rank, stack=stack, call=call, size=size)
    stacks = replace(seen.snapshot.stacks, position=(*FIT, *steps.split(", ")))
    return replace(seen, snapshot=replace(seen.snapshot, stacks=stacks))


@pytest.mark.parametrize(
    ("usual", "own", "culprits"),
    [
        ("line 50", "line 51", [1]),
        ("line 50, in f, line 4, turn 7", "line 51, in g, line 3", [1]),
        ("line 50, if 50 False, line 51", "line 52", []),
        ("line 50", "line 52, if 52 False, line 53", [1]),
        ("line 50, if 50 False, line 51", "line 50, if 50 True, line 53", []),
        ("line 50, turn ?, line 51", "line 50, turn ?, line 52", []),
        ("line 50, turn 4, line 52", "line 50, turn 5, line 51", [1]),
        ("line 50", "line 49", []),
        ("", "", []),
    ],
)
def test_a_rank_that_is_further_than_all_others_left_out_the_call_in_which_they_wait(
    usual: str, own: str, culprits: list[int]
) -> None:
    ranks = [in_turn(rank, usual) for rank in (0, 2, 3)]
    diagnosis = verdict(*ranks, in_turn(1, own, stack=BARRIER))
    assert (diagnosis.verdict, [culprit.rank for culprit in diagnosis.culprits]) == (
        Verdict.MISMATCH,
        culprits,
    )


def test_a_rank_that_passed_a_call_of_all_ranks_in_a_branch_is_named() -> None:
    ranks = [in_turn(rank, "line 50, if 50 True, line 51", call=EVERYBODY) for rank in (0, 2, 3)]
    diagnosis = verdict(*ranks, in_turn(1, "line 52", stack=BARRIER))
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]


@pytest.mark.parametrize(
    ("making", "own", "culprits"),
    [
        ("line 50, in f, line 4, if 4 True, line 5", "line 51", [1, 3]),
        ("line 48, turn ?, line 50", "line 48, turn ?, line 51", []),
    ],
)
def test_ranks_that_passed_a_new_group_in_which_others_wait_are_named(
    making: str, own: str, culprits: list[int]
) -> None:
    new_group = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:5863 new_group", "/home/me/train.py:5 f")
    checks = (f"{LIBRARY}/torch/distributed/utils.py:286 _verify_param_shape_across_processes", *LOOP)
    ranks = [in_turn(rank, making, new_group) for rank in (0, 2)]
    ranks += [in_turn(rank, own, checks, EVERYBODY) for rank in (1, 3)]
    diagnosis = verdict(*ranks)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert "DistributedDataParallel" in diagnosis.message


def test_a_rank_outside_of_a_group_that_its_members_make_alone_is_not_blamed() -> None:
    new_group = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:5863 new_group", "/home/me/train.py:5 f")
    maker = in_turn(0, "line 50, in f, line 4, if 4 True, line 5", new_group)
    request = GroupRequest(makes=("4a2a", "0-1"), meets="0-1")
    maker = replace(maker, snapshot=replace(maker.snapshot, request=request))
    others = [in_turn(rank, "line 51", BARRIER, EVERYBODY) for rank in (1, 2, 3)]
    assert [culprit.rank for culprit in verdict(maker, *others).culprits] == [1]


def test_groups_of_one_number_with_different_members_are_a_mismatch() -> None:
    new_group = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:5863 new_group", *LOOP)
    ranks = []
    for rank, members in enumerate(("0-1", "0-1", "0-1", "2-3")):
        seen = sampled(rank, stack=new_group)
        request = GroupRequest(makes=("2", members))
        ranks.append(replace(seen, snapshot=replace(seen.snapshot, request=request)))
    diagnosis = verdict(*ranks)
    assert diagnosis.verdict is Verdict.MISMATCH
    assert [culprit.rank for culprit in diagnosis.culprits] == [3]


@pytest.mark.parametrize(
    ("usual", "own", "parting"),
    [
        ("line 50, turn ?, line 51", "line 60", "rank 1 has left the loop at train.py:50 (main), "),
        (
            "line 50, in /me/fit.py fit, line 4, turn 7, line 5",
            "line 51",
            "left the loop at fit.py:4 (fit), ",
        ),
        (
            "turn 4, line 52, turn ?, line 53",
            "turn 5, line 52, turn ?, line 53",
            "the loop at train.py:52 (main)",
        ),
        ("line 50, exit 57, turn 4, line 51", "line 60", "rank 1 has left the loop at train.py:50 (main), "),
        (
            "line 5, next 57, turn 4, line 6",
            "line 5, next 57, turn 5, line 6",
            "in a later turn of the loop at",
        ),
        ("line 5, in /me/fit.py fit, exit 57, line 60", "line 6", "rank 1 has returned from fit "),
        ("line 60", "line 50, turn ?, line 51", "ranks 0 and 2-3 have left the loop at train.py:50 (main), "),
        (
            "line 5, turn ?, line 6",
            "line 5, turn ?, line 7, if 7 True, line 8",
            "in the branch at train.py:7 (main)",
        ),
        ("line 5, next 57, turn 4, line 6", "line 8", "rank 1 has left the loop at train.py:5 (main), "),
        (
            "line 50, if 50 False, line 51, turn 2",
            "line 60",
            "ranks 0 and 2-3 are in the branch at train.py:50",
        ),
        ("line 50, turn 2, line 51", "line 50, turn 2, line 53", "rank 1 is further"),
    ],
)
def test_the_statement_at_which_a_rank_parted_from_all_others_is_named(
    usual: str, own: str, parting: str
) -> None:
    ranks = [in_turn(rank, usual, call=EVERYBODY) for rank in (0, 2, 3)]
    diagnosis = verdict(*ranks, in_turn(1, own, stack=BARRIER, call=EVERYBODY))
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]
    assert parting in diagnosis.message
    assert ("drop_last" in diagnosis.remedy) == ("left the loop" in diagnosis.message)
    assert ("in line 57" in diagnosis.remedy) == ("57" in usual)


def test_the_branch_of_one_half_of_the_ranks_is_shown_without_blame() -> None:
    ranks = [in_turn(rank, "line 50, if 50 True, line 51", call=EVERYBODY) for rank in (0, 2)]
    ranks += [in_turn(rank, "line 50, if 50 False, line 53", stack=BARRIER) for rank in (1, 3)]
    diagnosis = verdict(*ranks)
    assert (diagnosis.culprits, "in the branch at train.py:50 (main)" in diagnosis.message) == ((), True)


def test_ranks_that_reduce_what_a_lightning_module_logs_are_shown() -> None:
    result = f"{LIBRARY}/lightning/pytorch/trainer/connectors/logger_connector/result.py:248 compute"
    logging = [sampled(rank, stack=(BARRIER[0], result, *LINE)) for rank in (0, 1, 3)]
    diagnosis = verdict(*logging, sampled(2, stack=(ALL_REDUCE[0], *LINE)))
    assert "ranks 0-1 and 3 reduce a value of self.log(sync_dist=True)" in diagnosis.message
    assert "let every rank log the same values" in diagnosis.remedy


def test_ranks_that_are_further_are_named_though_each_of_them_may_be_right() -> None:
    behind = [in_turn(rank, "line 50") for rank in (0, 3)]
    diagnosis = verdict(*behind, *(in_turn(rank, "line 51", stack=BARRIER) for rank in (1, 2)))
    assert diagnosis.culprits == ()
    assert "ranks 1-2 are further in the script" in diagnosis.message
    halves = [in_turn(rank, "line 50", stack=RECV, call=MainCall("recv", peer=1)) for rank in (0, 2, 3)]
    assert verdict(*halves, in_turn(1, "line 51", stack=BARRIER)).culprits == ()


def test_a_rank_that_waits_for_a_key_before_the_call_of_all_others_has_not_come_to_it() -> None:
    waiting = [in_turn(rank, "line 19", stack=BARRIER) for rank in (1, 2, 3)]
    for steps, culprits in (("line 17, if 17 False, line 18", [0]), ("turn ?, line 18", [])):
        seen = in_turn(0, steps, stack=LINE, call=MainCall("store"))
        stacks = replace(seen.snapshot.stacks, native=("c10d::TCPStore::wait",))
        seen = replace(seen, snapshot=replace(seen.snapshot, stacks=stacks))
        assert [culprit.rank for culprit in verdict(seen, *waiting).culprits] == culprits


def test_ranks_that_poll_a_store_wait_as_those_in_a_collective_do() -> None:
    def polls(rank: int) -> SeenRank:
        seen = sampled(
            rank, stack=LINE, native=("c10d::Store::check",), call=MainCall("store"), idle=0.1, switches=9
        )
        return replace(
            seen, snapshot=replace(seen.snapshot, stacks=replace(seen.snapshot.stacks, loop="n() < 4"))
        )

    history, late = JobHistory(), sampled(2, stack=LOOP, waits_in="do_select")
    for later, other, culprits in ((0, BARRIER, []), (60, BARRIER, []), (0, LOOP, []), (60, LOOP, [2])):
        history = JobHistory() if not later else history
        ranks = [*map(polls, (0, 1, 3)), late if other == LOOP else sampled(2, stack=other)]
        ranks = [replace(rank, snapshot=replace(rank.snapshot, clock=NOW + later)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*ranks), (), history).diagnosis
        assert [culprit.rank for culprit in diagnosis.culprits] == culprits
    assert "while n() < 4" in diagnosis.evidence[0]


@pytest.mark.parametrize(("polling", "culprits"), [((0, 1, 3), [2]), ((2,), [])])
def test_a_rank_that_is_not_in_a_barrier_of_the_script_s_own_holds_all_others_up(
    polling: tuple[int, ...], culprits: list[int]
) -> None:
    call = MainCall("store", is_of_all=True)
    options: dict[str, Any] = {"stack": LINE, "native": ("c10d::Store::check",), "call": call, "idle": 50.0}
    ranks = [sampled(rank, **(options if rank in polling else {})) for rank in range(4)]
    assert [culprit.rank for culprit in verdict(*ranks).culprits] == culprits


def test_the_rank_whose_server_does_not_answer_is_shown_with_what_its_threads_wait_for() -> None:
    claim = ThreadPlace("/home/me/train.py:9 serve", "/home/me/train.py:17 claim", waits="event")
    server = sampled(0, threads=(claim,), addresses=("10.0.0.1",), ports=(33000,))
    late = sampled(3, "n1", LOOP)
    wait = ThreadWait("read", LOOP[0], "10.0.0.1:33000")
    stacks = replace(late.snapshot.stacks, waits=(wait,))
    late = replace(late, snapshot=replace(late.snapshot, stacks=stacks))
    diagnosis = verdict(server, sampled(1), sampled(2), late)
    assert blamed(diagnosis) == [(3, "n1")]
    assert "data from rank 0, which listens at 10.0.0.1:33000," in diagnosis.message
    assert "train.py:17 (claim), where it waits for an event" in diagnosis.message


@pytest.mark.parametrize(
    ("name", "loop", "number", "is_late_at_once", "is_late"),
    [
        ("attempt", "", 9, False, True),
        ("done", "not ready()", 9, True, True),
        ("step", "", 9, False, False),
        ("step", "", 3, False, True),
    ],
)
def test_a_rank_that_sleeps_and_counts_in_no_while_is_looked_at_again(
    name: str, loop: str, number: int, is_late_at_once: bool, is_late: bool
) -> None:
    history = JobHistory()
    asleep = sampled(3, stack=LOOP, idle=0.9, waits_in="hrtimer_nanosleep")
    stacks = replace(asleep.snapshot.stacks, loop=loop)
    first = replace(asleep, numbers=(f"{name}=3",), before=(f"{name}=3",))
    first = replace(first, snapshot=replace(first.snapshot, stacks=stacks))
    others = list(map(sampled, range(3)))
    judgement = diagnose_looks(looks(*others, first), (), history)
    assert judgement.certain == bool(judgement.diagnosis.culprits) == is_late_at_once
    later = [
        replace(rank, snapshot=replace(rank.snapshot, clock=NOW + 31), numbers=(f"{name}={number}",))
        for rank in (*others, first)
    ]
    diagnosis = diagnose_looks(looks(*later), (), history).diagnosis
    assert blamed(diagnosis) == ([(3, "n0")] if is_late else [])


def test_a_rank_that_waits_for_one_of_several_requests_may_serve_its_peer() -> None:
    def receives(rank: int, name: str = "wait") -> SeenRank:
        call = MainCall(name, "recv", peer=(rank - 1) % 4)
        return sampled(rank, stack=LINE, native=("c10d::Work::waitRecv",), call=call)

    ring = verdict(*map(receives, range(4)))
    assert ring.culprits == ()
    assert not re.search("no rank is left|before it|different calls", ring.message)
    assert "wait for each other" in verdict(*(receives(rank, "recv") for rank in range(4))).message
    gone_on = verdict(receives(0), receives(1), receives(2), sampled(3, stack=BARRIER))
    assert (gone_on.verdict, "rank 0 waits in recv from rank 3" in gone_on.message) == (
        Verdict.MISMATCH,
        True,
    )


@pytest.mark.parametrize(("tag", "culprits"), [(6, [0, 1]), (-1, [])])
def test_a_receive_of_any_tag_differs_from_no_send(tag: int, culprits: list[int]) -> None:
    sends = sampled(0, stack=LINE, native=("MPI_Ssend",), call=MainCall("send", peer=1, tag=5), size=2)
    receives = sampled(1, stack=LINE, native=("MPI_Recv",), call=MainCall("recv", peer=0, tag=tag), size=2)
    assert [culprit.rank for culprit in verdict(sends, receives).culprits] == culprits


@pytest.mark.parametrize(("call", "culprits"), [(EVERYBODY, [(1, "n0")]), (MainCall(), [])])
def test_the_rank_that_left_the_loop_of_a_library_is_named_by_where_its_stack_parts(
    call: MainCall, culprits: list[tuple[int, str]]
) -> None:
    fit = (f"{LIBRARY}/lightning/trainer.py:584 fit", "/home/me/train.py:21 <module>")
    loop = (f"{LIBRARY}/lightning/fit_loop.py:217 run", *fit)
    behind_loop = (f"{LIBRARY}/lightning/fit_loop.py:218 run", *fit)
    ranks = [
        sampled(0, stack=(*BROADCAST[:1], *loop)),
        sampled(1, stack=(*BARRIER[:1], *behind_loop), call=call),
        sampled(2, stack=(f"{LIBRARY}/torch/autograd/graph.py:979 _engine_run_backward", *loop)),
        sampled(3, stack=(*BROADCAST[:1], *loop)),
    ]
    diagnosis = verdict(*ranks)
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.MISMATCH, culprits)
    assert "rank 1 waits in barrier at train.py:21 by way of fit_loop.py:218 (run)" in diagnosis.message


def test_ranks_that_wait_for_the_build_of_one_of_them_do_not_hang() -> None:
    waits = (f"{LIBRARY}/torch/utils/file_baton.py:50 wait", *LOOP)
    builds = ("/usr/lib/python3.11/subprocess.py:1196 communicate", *LOOP)
    compiler = ChildProcess(9, "cc1plus", "R")
    others = [sampled(rank, stack=waits) for rank in range(3)]
    diagnosis = verdict(*others, sampled(3, stack=builds, busy=0.1, children=(compiler,)))
    assert (diagnosis.verdict, diagnosis.message) == (Verdict.NOTHING, "rank 3 computes")


@pytest.mark.parametrize(("lacks_thread", "expected"), [(True, Verdict.WAITING), (False, Verdict.NOTHING)])
def test_loaders_hang_if_their_workers_wait_for_a_lock_that_the_fork_copied(
    lacks_thread: bool, expected: Verdict
) -> None:
    loads = (f"{LIBRARY}/torch/utils/data/dataloader.py:1291 _try_get_data", *LOOP)
    worker = ChildProcess(9, "python", "S", stack=("/home/me/train.py:9 encode",), lacks_thread=lacks_thread)
    ranks = [sampled(rank, stack=loads, idle=0.5, children=(worker,)) for rank in range(4)]
    history = JobHistory()
    for clock in (NOW, NOW + 6.0):
        clocked = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in ranks]
        diagnosis = diagnose_looks(looks(*clocked), (), history).diagnosis
    assert diagnosis.verdict is expected
    assert not lacks_thread or "forkserver" in diagnosis.remedy


def test_a_common_call_of_all_ranks_names_nobody() -> None:
    diagnosis = verdict(*(sampled(rank, counters=(f"step={7 + (rank == 2)}",)) for rank in range(4)))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert diagnosis.message.startswith("not enough seen: all ranks wait in all_reduce at train.py:11 (step)")
    assert "ranks 0-1 and 3: step=7; rank 2: step=8" in diagnosis.evidence
    assert 0 <= diagnosis.remedy.find("same order") < diagnosis.remedy.find("link")


def test_a_rank_that_waits_for_the_lock_of_the_interpreter_is_in_no_collective() -> None:
    holder = ThreadPlace("/home/me/train.py:60 watch", "/home/me/train.py:63 watch", holds_lock=True)
    diagnosis = verdict(*map(sampled, (0, 1, 3)), sampled(2, threads=(holder,)))
    assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.NEVER_ARRIVED, [(2, "n0")])
    assert "which another thread holds at train.py:63 (watch)" in diagnosis.message


def test_two_threads_in_calls_of_all_ranks_are_named_unless_a_rank_is_absent() -> None:
    watcher = ThreadPlace("/home/me/train.py:60 watch", "/home/me/train.py:63 watch", "all_gather", True)
    both = [sampled(rank, threads=(watcher,)) for rank in range(2)]
    diagnosis = verdict(*both, sampled(2), sampled(3))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert diagnosis.message.startswith(
        "two threads use one process group: another thread called all_gather at "
    )
    assert blamed(verdict(*both, sampled(2), sampled(3, stack=LOOP))) == [(3, "n0")]
    of_own_group = (replace(watcher, is_of_all=False),)
    diagnosis = verdict(*(sampled(rank, threads=of_own_group) for rank in range(4)))
    assert diagnosis.verdict is Verdict.UNDETERMINED


@pytest.mark.parametrize(("threads", "expected"), [(4, Verdict.MISMATCH), (3, Verdict.UNDETERMINED)])
def test_a_call_of_all_ranks_that_threads_make_during_the_backward_pass_ends_in_a_group_of_its_own(
    threads: int, expected: Verdict
) -> None:
    saver = ThreadPlace("/home/me/train.py:60 save", "/home/me/train.py:63 save", "barrier", True)
    ranks = [
        sampled(
            rank,
            stack=BACKWARD,
            native=("c10d::Reducer::finalize",),
            call=MainCall(),
            threads=(saver,) * (rank < threads),
        )
        for rank in range(4)
    ]
    diagnosis = verdict(*ranks)
    assert (diagnosis.verdict, diagnosis.culprits) == (expected, ())
    assert ("at train.py:63 (save)" in diagnosis.message) is (threads == 4)


def test_no_rank_remains_to_set_a_key_that_all_await() -> None:
    unread = sampled(3, stack=LINE)
    unread = replace(unread, snapshot=replace(unread.snapshot, problem="its native frames"))
    diagnosis = verdict(*(sampled(rank, stack=LINE, native=STORE) for rank in range(3)), unread)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert diagnosis.message.startswith("all ranks wait for a key of the store at train.py:50")


# --- without stacks ---


def test_states_are_shown_without_blame_if_there_are_no_stacks() -> None:
    diagnosis = verdict(*(sampled(rank, stack=(), waits_in="futex") for rank in range(4)))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert diagnosis.message == "not enough seen: no Python stack of ranks 0-3 could be read"
    assert "pip install" not in diagnosis.remedy
    (line,) = [line for line in diagnosis.evidence if "no stack" in line]
    assert line == "ranks 0-3: no stack; state S in futex, 0 processors, did not run during the look"


@pytest.mark.parametrize("problem", ["", NOT_INSTALLED])
def test_ranks_without_stacks_are_looked_at_again_unless_the_reason_is_known(problem: str) -> None:
    ranks = [sampled(rank, stack=(), size=2) for rank in range(2)]
    silent = [replace(rank, snapshot=replace(rank.snapshot, problem=problem)) for rank in ranks]
    judgement = diagnose_looks(looks(*silent), (), JobHistory())
    assert (judgement.certain, "pip install" in judgement.diagnosis.remedy) == (bool(problem), bool(problem))


@pytest.mark.parametrize(("busy", "expected"), [(0.9, Verdict.NOTHING), (0.0, Verdict.UNDETERMINED)])
def test_ranks_without_python_that_work_are_no_hang(busy: float, expected: Verdict) -> None:
    ranks = [sampled(rank, stack=(), busy=busy, size=2) for rank in range(2)]
    silent = [replace(rank, snapshot=replace(rank.snapshot, problem=NO_PYTHON)) for rank in ranks]
    assert verdict(*silent).verdict is expected


def test_a_rank_without_a_process_is_named_without_stacks() -> None:
    diagnosis = verdict(sampled(0, stack=()), sampled(1, stack=()), sampled(3, "n1", stack=()))
    assert blamed(diagnosis) == [(2, "n1")]


# --- worlds ---


def test_ranks_with_equal_numbers_are_of_different_worlds() -> None:
    first = [sampled(rank, size=2, name={"step": "0"}) for rank in (0, 1)]
    second = [
        sampled(rank, "n1", size=2, name={"step": "1"}, stack=(ALL_REDUCE, LOOP)[rank]) for rank in (0, 1)
    ]
    worlds = worlds_of(looks(*first, *second), True)
    assert [[(rank.rank, rank.node) for rank in world.ranks] for world in worlds] == [
        [(0, "n0"), (1, "n0")],
        [(0, "n1"), (1, "n1")],
    ]
    diagnosis = verdict(*first, *second)
    assert blamed(diagnosis) == [(1, "n1")]
    assert "the job has 2 worlds of ranks; this is that of 2 ranks on n1" in diagnosis.evidence


def test_nodes_with_a_world_each_train_alone() -> None:
    ranks = [
        sampled(rank, node, size=2, name={"address": f"{node}:1"}, idle=0.0, moved=True)
        for node in ("n0", "n1")
        for rank in (0, 1)
    ]
    diagnosis = verdict(*ranks)
    assert (diagnosis.verdict, diagnosis.message[:27]) == (Verdict.ALONE, "each of 2 nodes has a world")


def test_a_rank_variable_that_all_ranks_share_gives_way_to_the_number_of_the_task() -> None:
    ranks = [sampled(0, f"n{task}", size=1, name={"task": task}) for task in range(3)]
    (world,) = worlds_of(looks(*ranks), True)
    assert [(rank.rank, rank.node) for rank in world.ranks] == [(0, "n0"), (1, "n1"), (2, "n2")]


def test_ranks_without_any_number_are_numbered_by_node_and_process() -> None:
    nameless = {"variable": "", "rank": -1, "size": 0}
    ranks = [sampled(number, node, name=nameless) for number, node in ((7, "n0"), (3, "n0"), (5, "n1"))]
    (world,) = worlds_of(looks(*ranks), True)
    assert [(rank.rank, rank.node, rank.process.pid) for rank in world.ranks] == [
        (0, "n0", 103),
        (1, "n0", 107),
        (2, "n1", 105),
    ]


def test_ranks_without_a_number_use_a_variable_of_their_script_if_all_have_it() -> None:
    def world(*own: int) -> JobWorld:
        nameless = {"variable": "", "rank": -1, "size": 0}
        ranks = [sampled(number, name={**nameless, "own": value}) for number, value in enumerate(own)]
        return worlds_of(looks(*ranks), True)[0]

    assert [rank.process.pid for rank in world(2, 0, 1).ranks] == [101, 102, 100]
    assert [rank.process.pid for rank in world(2, 0, 2).ranks] == [100, 101, 102]
    assert (world(2, 0, 1).is_numbered, world(2, 0, -1).is_numbered) == (True, False)


def test_the_tasks_of_a_job_spawn_equally_many_ranks() -> None:
    """The last process of the second task has ended, and the task does not show that it had two."""
    places = {0: (0, 0, 2), 1: (0, 1, 2), 9: (1, 0, 1)}
    ranks = []
    for number, (task, index, spawns) in places.items():
        name = {"spawned": index, "spawns": spawns, "task": task, "size": 2 * spawns}
        name["rank"] = task * spawns + index
        ranks.append(sampled(number, node=f"n{task}", stack=MEETING, name=name))
    assert blamed(verdict(*ranks)) == [(3, "n1")]


def test_ranks_that_were_only_counted_are_listed_with_their_processes() -> None:
    nameless = {"variable": "", "rank": -1, "size": 0}
    diagnosis = verdict(
        sampled(0, name=nameless), sampled(1, name=nameless), sampled(2, name=nameless, stack=LOOP)
    )
    assert any("rank 0 is process 100" in line for line in diagnosis.evidence)
    assert "rank 2 is process 102" in diagnosis.message
    assert blamed(diagnosis) == [(2, "n0")]


def test_a_rank_that_makes_a_group_larger_than_the_job_is_named() -> None:
    ranks = []
    for number in range(4):
        rank = sampled(number, stack=MEETING)
        request = GroupRequest(world=5 if number == 3 else 4, asks=number, store="n0:29500")
        ranks.append(SeenRank(rank.name, replace(rank.snapshot, request=request)))
    diagnosis = verdict(*ranks)
    assert blamed(diagnosis) == [(3, "n0")]
    assert "is 5, and 4 ranks started" in diagnosis.remedy


def test_ranks_that_were_only_counted_are_not_blamed_for_those_that_are_not_there() -> None:
    ranks = []
    for number in range(3):
        rank = sampled(number, stack=MEETING, name={"variable": "", "rank": -1, "size": 0})
        request = GroupRequest(world=4, asks=number, store="n0:29500")
        ranks.append(SeenRank(rank.name, replace(rank.snapshot, request=request)))
    diagnosis = verdict(*ranks)
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())


# --- launchers ---


def test_launchers_that_await_each_other_are_named_with_the_nodes_without_one() -> None:
    torchrun = SeenLauncher("torchrun", 5, "S", ELASTIC)
    shell = sampled(1, "n1", stack=(), size=2, children=(ChildProcess(9, "sleep", "S"),))
    for ranks in ((), (shell,)):  # a shell that will start torchrun has the number of a task
        look = [
            JobLook("n0", NOW, launchers=(torchrun,), processes=3),
            JobLook("n1", NOW, ranks, processes=1),
        ]
        diagnosis = diagnose_looks(look, (), JobHistory()).diagnosis
        assert (diagnosis.verdict, blamed(diagnosis)) == (Verdict.NEVER_ARRIVED, [(-1, "n1")])
    assert diagnosis.culprits[0].why == "no torchrun waits there; there runs sleep (process 9)"
    assert diagnosis.message == "torchrun on n0 waits for other nodes, and has started no rank"
    assert diagnosis.evidence[0] == "torchrun on n0 is at dynamic_rendezvous.py:1 (x)"


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("login1:29500", "names no node of the job"),
        ("localhost:29500", "each node waits for itself"),
        ("127.0.1.1:29500", "each node waits for itself"),
        ("n0.cluster:29500", ""),
        ("n0-ib:29500", ""),
        ("10.0.0.9:29500", ""),
    ],
)
def test_a_rendezvous_endpoint_that_names_no_other_node_of_the_job_is_reported(
    endpoint: str, problem: str
) -> None:
    torchrun = SeenLauncher("torchrun", 5, "S", ELASTIC, nodes=2, endpoint=endpoint)
    look = [JobLook(node, NOW, launchers=(torchrun,), processes=3) for node in ("n0", "n1")]
    diagnosis = diagnose_looks(look, (), JobHistory()).diagnosis
    assert (diagnosis.culprits, f"its rendezvous endpoint is {endpoint}" in diagnosis.evidence) == ((), True)
    assert diagnosis.message.endswith(problem or "has started no rank")


@pytest.mark.parametrize("setting", ["endpoint", "run_id", "nodes"])
def test_launchers_that_differ_in_how_they_meet_wait_for_each_other(setting: str) -> None:
    torchrun = SeenLauncher("torchrun", 5, "S", ELASTIC, nodes=2, endpoint="n0:29500", run_id="7")
    other = replace(torchrun, **{setting: 9 if setting == "nodes" else "n1:29500"})
    look = [JobLook("n0", NOW, launchers=(torchrun,)), JobLook("n1", NOW, launchers=(other,))]
    diagnosis = diagnose_looks(look, (), JobHistory()).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())


def test_launchers_that_await_more_nodes_than_the_job_has_are_reported() -> None:
    torchrun = SeenLauncher("torchrun", 5, "S", ELASTIC, nodes=3)
    look = [JobLook(node, NOW, launchers=(torchrun,), processes=3) for node in ("n0", "n1")]
    diagnosis = diagnose_looks(look, (), JobHistory()).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.NEVER_ARRIVED, ())
    assert diagnosis.message.endswith("it waits for 3 nodes, and the job has 2")


def test_a_job_without_ranks_is_reported_as_such() -> None:
    look = [
        JobLook("n0", NOW, processes=3, launchers=(SeenLauncher("srun", 5, "S"),), programs=("bash", "tar"))
    ]
    diagnosis = diagnose_looks(look, (), JobHistory()).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert diagnosis.message.startswith("the job has 3 processes (bash, srun, tar), and none")
    silent = diagnose_looks(look, (("n1", "connection failure"),), JobHistory()).diagnosis
    assert silent.message.startswith("n1 did not answer") and "sinfo" in silent.remedy


def test_problems_of_nodes_and_gpus_are_shown() -> None:
    diagnosis = diagnose_looks(
        looks(sampled(0, size=1), problems=("py-spy is not installed there",)), (), JobHistory()
    )
    assert "n0: py-spy is not installed there" in diagnosis.diagnosis.evidence


def test_the_nodes_of_ranks_in_different_calls_are_shown_if_nobody_is_blamed() -> None:
    stacks = (ALL_REDUCE, ALL_REDUCE, BARRIER, BARRIER)
    diagnosis = verdict(*(sampled(rank, f"n{rank // 2}", stack) for rank, stack in enumerate(stacks)))
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.MISMATCH, ())
    assert [line.partition(" have")[0] for line in sorted(diagnosis.evidence)] == [
        "ranks 0-1 on n0",
        "ranks 2-3 on n1",
    ]


def test_ranks_that_all_save_do_not_hang() -> None:
    ranks = [sampled(rank, stack=LOOP, file=f"/scratch/{rank}.pt", written=1.5e6) for rank in range(4)]
    diagnosis = verdict(*ranks)
    assert diagnosis.verdict is Verdict.NOTHING
    assert "/scratch/3.pt" in diagnosis.evidence[3]


RAY = "/usr/lib/python3.11/site-packages/ray/_private"


def test_ranks_that_wait_for_tasks_of_ray_are_no_pause() -> None:
    """Ray polls for the result. Its controller runs no line of the script, and is no rank."""
    gets = (f"{RAY}/worker.py:1007 get_objects", f"{RAY}/worker.py:3009 get", *LOOP)
    controls = (f"{RAY}/worker.py:1069 main_loop", f"{RAY}/workers/default_worker.py:323 <module>")
    ranks = [sampled(rank, stack=gets, idle=0.1) for rank in range(2)]
    seen = [*ranks, sampled(2, stack=controls)]
    unnumbered = [replace(rank, name=replace(rank.name, variable="", rank=-1, size=0)) for rank in seen]
    history = JobHistory()
    for clock in (NOW, NOW + 30):
        later = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in unnumbered]
        diagnosis = diagnose_looks(looks(*later), (), history, 3.0).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert "all 2 ranks wait" in diagnosis.message and "Ray" in diagnosis.message
    assert any(line.startswith("process 102 on n0 is in no line") for line in diagnosis.evidence)


@pytest.mark.parametrize("is_of_all", [True, False])
def test_a_call_of_ray_train_is_a_collective(is_of_all: bool) -> None:
    reports = (
        *(f"{RAY}/worker.py:1007 get_objects", f"{RAY}/worker.py:3009 get"),
        "/usr/lib/python3.11/site-packages/ray/train/v2/api/train_fn_utils.py:125 report",
        *LOOP,
    )
    ranks = [sampled(rank, stack=reports) for rank in (0, 1, 3)]
    ranks.append(sampled(2, stack=ALL_REDUCE, call=MainCall(is_of_all=is_of_all)))
    diagnosis = verdict(*ranks)
    assert diagnosis.verdict is Verdict.MISMATCH
    assert blamed(diagnosis) == [(2, "n0")] * is_of_all


def test_a_server_of_the_job_is_not_reported_in_place_of_its_ranks() -> None:
    serves = sampled(0, "n1", LOOP, size=1, idle=0.1, name={"step": "1"})
    ranks = [sampled(rank, stack=LOOP, size=2, file="/scratch/a.pt", written=1.5e6) for rank in range(2)]
    history = JobHistory()
    for clock in (NOW, NOW + 30):
        later = [replace(rank, snapshot=replace(rank.snapshot, clock=clock)) for rank in (*ranks, serves)]
        diagnosis = diagnose_looks(looks(*later), (), history).diagnosis
    assert diagnosis.verdict is Verdict.NOTHING
    assert "the job has 2 worlds of ranks; this is that of 2 ranks on n0" in diagnosis.evidence


def test_the_condition_of_a_loop_in_which_all_ranks_wait_is_shown() -> None:
    ranks = [sampled(rank, stack=LOOP, size=2, idle=0.1, waits_in="hrtimer_nanosleep") for rank in range(2)]
    history = JobHistory()
    for clock in (NOW, NOW + 30):
        later = []
        for rank in ranks:
            stacks = replace(rank.snapshot.stacks, loop="not path.exists()")
            later.append(replace(rank, snapshot=replace(rank.snapshot, clock=clock, stacks=stacks)))
        diagnosis = diagnose_looks(looks(*later), (), history).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.WAITING, ())
    (line,) = [line for line in diagnosis.evidence if line.startswith("ranks 0-1 on n0")]
    assert "train.py:33 (work)" in line and "while not path.exists()" in line
