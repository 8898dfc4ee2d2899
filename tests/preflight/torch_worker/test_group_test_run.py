"""The laws of a test on its node: when its result is due, and what it says of ranks that never end."""

from __future__ import annotations

import pytest

from clusterrun.model.frozen import replace
from clusterrun.preflight.tasks import GroupMember, GroupTask, TorchStarted
from clusterrun.preflight.torch_worker.group_test_run import GroupTestRun
from clusterrun.preflight.torch_worker.rank_report import RankReport, line
from clusterrun.preflight.torch_worker.torch_server import ListeningPorts, TorchServer

TASK = GroupTask(
    9, "pair", (GroupMember(0, "a", "10.0.0.1"), GroupMember(1, "b", "10.0.0.2")), 0, 2, 1, "", 10.0
)
DONE = RankReport("done", True, (("all_reduce", 1.0),))


class Child:
    """A child that gives the prepared answers; it stands for a process."""

    def __init__(self) -> None:
        self.output, self.closed, self.killed = 5, False, False
        self.said: list[str] = []
        self.log = ""
        self.without = 0.0

    def seconds_without_processor(self) -> float:
        return self.without

    def say(self, *arguments: RankReport) -> None:
        self.said += [line(report) for report in arguments]

    def lines(self) -> list[str]:
        message, self.said = self.said, []
        return message

    def printed(self) -> str:
        return self.log

    def end(self) -> None:
        self.killed = self.closed = True

    def gone(self) -> bool:
        return self.closed


def started() -> tuple[GroupTestRun, Child, Child]:
    first, second = Child(), Child()
    return GroupTestRun(TASK, [first, second], now=100.0), first, second


def test_the_result_is_reported_once_after_all_ranks_ended() -> None:
    trial, first, second = started()
    first.say(RankReport("store"), RankReport("group"), DONE)
    assert trial.poll(100.5) is None
    second.say(DONE)
    result = trial.poll(101.0)
    assert result is not None
    assert (result.passed, result.stage, result.seconds, result.late) == (True, "done", 1.0, False)
    assert trial.poll(102.0) is None


@pytest.mark.parametrize("without, starved", [(2.4, False), (2.5, True)])
def test_a_late_test_whose_ranks_waited_for_processors_has_no_verdict(without: float, starved: bool) -> None:
    trial, first, _ = started()
    first.without = without
    result = trial.poll(110.0)
    assert result is not None
    assert (result.passed, result.late, result.starved) == (False, True, starved)


ASYNC_ERROR = """a:7:9 [0] NCCL INFO Using network Socket
[rank1]:[E1126 06:33:46.452234113 ProcessGroupNCCL.cpp:672] [Rank 1] Collective WorkNCCL(SeqNum=1, \
OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=60000) raised the following async exception: \
NCCL error: {kind}, NCCL version 2.29.7
{code}: {meaning}
Last error:
{last}
Exception raised from checkForNCCLErrorsInternal at /c10d/ProcessGroupNCCL.cpp:2866 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f4e784d0fad in /lib/libc10.so)

[rank1]:[E1126 06:33:46.452811820 ProcessGroupNCCL.cpp:2395] [PG ID 0 Rank 1]  failure detected by watchdog
"""
INTERNAL = ASYNC_ERROR.format(
    kind="internal error - please report this issue to the NCCL developers",
    code="ncclInternalError",
    meaning="Internal check failed.",
    last="",
)
REMOTE = ASYNC_ERROR.format(
    kind="remote process exited or there was a network error",
    code="ncclRemoteError",
    meaning="A call failed possibly due to a network error or a remote process exiting prematurely.",
    last="NET/IB : Got completion from peer 10.0.0.2<5> with status=12 opcode=0 len=0 vendor err 129",
)
IN_VAIN = RankReport("exact", True, why="the GPU did not finish the queued work", late=True)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            INTERNAL,
            "NCCL 2.29.7: internal error - please report this issue to the NCCL developers "
            "(ncclInternalError)",
        ),
        (
            REMOTE,
            "NCCL 2.29.7: remote process exited or there was a network error (ncclRemoteError) "
            "NET/IB : Got completion from peer 10.0.0.2<5> with status=12 opcode=0 len=0 vendor err 129",
        ),
    ],
)
def test_an_asynchronous_error_explains_a_wait_for_the_gpu(log: str, reason: str, is_killed: bool) -> None:
    trial, first, second = started()
    first.say(IN_VAIN)
    second.log = log
    second.say(RankReport("exact"), *([] if is_killed else [IN_VAIN]))
    result = trial.poll(110.0)
    assert result is not None
    assert (result.passed, result.late, result.why) == (False, False, reason)


def test_a_wait_without_an_error_is_late() -> None:
    trial, first, second = started()
    first.say(IN_VAIN)
    second.say(IN_VAIN)
    result = trial.poll(109.5)
    assert result is not None
    assert (result.passed, result.late, result.why) == (False, True, IN_VAIN.why)


def test_a_wrong_sum_is_a_verdict_on_an_overloaded_machine_too() -> None:
    trial, first, second = started()
    for rank in (first, second):
        rank.without = 9.0
        rank.say(replace(DONE, wrong="the summand of a node arrived changed"))
    result = trial.poll(109.0)
    assert result is not None
    assert (result.passed, result.starved) == (False, False)


def test_unfinished_ranks_at_the_limit_are_late_at_their_stage() -> None:
    trial, first, second = started()
    first.say(RankReport("store"), RankReport("group"))
    second.say(DONE)
    assert trial.wakes_at() == 110.0
    assert trial.poll(109.9) is None
    result = trial.poll(110.0)
    assert result is not None
    assert (result.passed, result.late, result.stage) == (False, True, "group")
    assert result.why == "local rank 0: killed after 10.0 s without an end"


def test_the_others_may_report_shortly_after_one_rank_failed() -> None:
    trial, first, second = started()
    first.say(RankReport("exact"), RankReport("exact"))
    second.say(RankReport("exact"), RankReport(ended=True, why="closed by peer"))
    assert trial.poll(103.0) is None
    assert trial.wakes_at() == 104.0
    result = trial.poll(104.0)
    assert result is not None
    assert (result.passed, result.late, result.stage, result.why) == (False, False, "exact", "closed by peer")
    assert trial.over(104.0) is False
    assert (first.killed, second.killed) == (True, True)
    assert trial.over(104.1) is True


def test_a_child_that_dies_silently_is_reported_with_its_output() -> None:
    trial, first, second = started()
    first.say(RankReport("timed"))
    first.closed, first.log = True, "terminate called\nfatal error: out of luck\n"
    second.say(DONE)
    result = trial.poll(101.0)
    assert result is not None
    assert (result.passed, result.stage) == (False, "timed")
    assert result.why == "the test's process died: fatal error: out of luck"


def test_nonsense_from_a_child_is_a_failure_of_the_test() -> None:
    trial, first, second = started()
    first.said = ["{]"]
    second.say(DONE)
    result = trial.poll(101.0)
    assert result is not None
    assert (result.passed, result.why) == (False, "the test's process wrote an unreadable report")


def test_answers_after_the_final_one_change_nothing() -> None:
    trial, first, second = started()
    first.say(DONE, RankReport(ended=True, why="the store is gone"))
    second.say(DONE)
    result = trial.poll(101.0)
    assert result is not None
    assert result.passed


def test_children_that_are_done_may_leave_by_themselves_and_are_killed_after_a_while() -> None:
    trial, first, second = started()
    first.say(DONE)
    second.say(DONE)
    trial.poll(101.0)
    assert trial.over(101.0) is False
    assert first.killed is False
    first.closed = True
    assert trial.over(103.9) is False
    assert second.killed is False
    assert trial.over(104.0) is False
    assert second.killed is True
    assert trial.over(104.1) is True


class Leaving(Child):
    """One that has said its last report, and lives on for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.say(DONE)
        self.dead = False

    def gone(self) -> bool:
        return self.dead


@pytest.mark.parametrize("backend, at_once", [("nccl", False), ("gloo", True)])
def test_a_pretended_gpu_is_released_before_the_next_test(
    monkeypatch: pytest.MonkeyPatch, backend: str, at_once: bool
) -> None:
    children, begun, answers = {1: Leaving(), 2: Leaving()}, [], []

    def fork(task: GroupTask, until: float) -> list[Leaving]:
        begun.append((task.test, until))
        return [children[task.test]]

    serving = TorchServer(TorchStarted(True, 0.0, backend=backend), {}, ListeningPorts(), answers.append)
    monkeypatch.setattr(serving, "_fork", fork)
    serving.accept(replace(TASK, test=1), 100.0)
    serving.step(101.0)
    serving.accept(replace(TASK, test=2), 101.5)
    serving.step(102.0)
    assert ([answer.test for answer in answers][:1], len(begun)) == ([1], 2 if at_once else 1)
    children[1].dead = True
    serving.step(103.0)
    assert begun == [(1, 110.0), (2, 111.5)]


BEGUN = (
    "d5618706-01:1106799:1106799 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "d5618706-01:1106799:1106799 [0] NCCL INFO cudaDriverVersion 12080\n"
)
CONNECTS = BEGUN + (
    "d5618706-01:1106799:1106856 [0] NCCL INFO ncclCommInitRankConfig comm 0x5629b5ee7340 rank 0 nranks 8 "
    "cudaDev 0 nvmlDev 0 busId 18000 commId 0x2fb902677fd5202e - Init START\n"
)
"""The form of NCCL's lines, as in nccl#1646."""


@pytest.mark.parametrize(
    ("printed", "loading"), [("", False), ("Gloo connectFullMesh", False), (BEGUN, True), (CONNECTS, False)]
)
def test_a_rank_that_is_killed_before_nccl_connects_was_loading_its_kernels(printed, loading) -> None:
    trial, first, second = started()
    for child in (first, second):
        child.say(RankReport("store"), RankReport("group"))
        child.log = printed
    result = trial.poll(110.0)
    assert result is not None
    assert (result.passed, result.late, result.loading) == (False, True, loading)
    assert result.why.endswith("while NCCL loaded its kernels") == loading


@pytest.mark.parametrize(
    ("connected_at", "printed", "loading"),
    [(109.0, CONNECTS, True), (101.0, CONNECTS, False), (109.0, "Gloo connectFullMesh", False)],
)
def test_a_rank_without_time_after_nccl_loaded_its_kernels_is_no_failure(
    connected_at, printed, loading
) -> None:
    trial, *children = started()
    for child in children:
        child.log = printed
        child.say(RankReport("store"), RankReport("group"))
    trial.poll(100.5)
    for child in children:
        child.say(RankReport("exact"))
    trial.poll(connected_at)
    for child in children:
        child.say(RankReport(ended=True, why="the GPU did not finish the queued work", late=True))
    result = trial.poll(109.5)
    assert result is not None
    assert (result.passed, result.late, result.loading) == (False, True, loading)
