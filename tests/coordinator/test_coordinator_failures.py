"""The coordinator's laws of failed ranks, lost nodes and restarts, one short tape each."""

from __future__ import annotations

import itertools

import pytest

from clusterrun.coordinator.actions import ClaimEpoch, DropLink
from clusterrun.coordinator.events import (
    AgentJoined,
    AgentLeft,
    ClaimFailed,
    EpochClaimed,
    LauncherEnded,
    MemoryKilled,
    MessageCame,
)
from clusterrun.model.contract import STARVED
from clusterrun.model.record import Failure
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import Beat, Hello, RankExited, RanksGone, ReservePort, StopRanks
from clusterrun.runtime.machine_events import Note, StoodStill, Tick
from tests.coordinator.tapes import (
    STOP,
    WALL,
    all_gone,
    coordinator,
    ending,
    failed,
    sent,
    stopped,
    train,
    training,
)


def test_ranks_are_stopped_a_moment_after_the_first_failure() -> None:
    tape = training()
    assert sent(tape.at(5.0, failed(3, 5.0))) == []
    assert [sent(tape.at(5.29)), sent(tape.at(5.3))] == [[], STOP]


def test_the_failure_is_on_record_before_its_attempt_has_ended() -> None:
    """The coordinator may be lost until then, with the first node."""
    tape = training()
    tape.at(5.0, failed(3, 5.0))
    (attempt,) = tape.state(5.4).attempts
    assert (attempt.failure, attempt.outcome) == (
        Failure(3, "n1", 3, WALL + 5.0, "rank 3 on n1 exited with code 3"),
        "",
    )


@pytest.mark.parametrize("later", [5.1, 6.0])
def test_the_earliest_failure_is_reported_even_if_its_message_arrives_last(later: float) -> None:
    tape = training()
    tape.at(5.0, failed(3, 4.9))
    tape.at(5.3)
    tape.at(later + 0.3, failed(0, 4.5, code=-11))
    state = ending(all_gone(tape, 7.0))
    text = "rank 0 on n0 was killed by signal 11 (SIGSEGV)"
    assert state.failure == Failure(0, "n0", -11, WALL + 4.5, text)
    assert [state.reason, state.exit_code, state.state] == [text, 139, State.FAILED]


NOTICED = {"code": 1, "noticed": True, "last_lines": ("Connection closed by peer [10.0.0.2]:4711.",)}


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 3])))
@pytest.mark.parametrize("ended_at", [4.0, 7.9])
def test_whoever_only_noticed_is_not_the_first_failure_however_late_the_cause_is_seen(
    order: tuple[int, ...], ended_at: float
) -> None:
    """On a busy node the rank that failed is seen to end long after its peers."""
    tape = training()
    for rank in order:
        tape.at(5.0, failed(rank, 5.0, **NOTICED))
    assert sent(tape.at(5.3)) == []
    tape.at(7.9, failed(2, ended_at, code=1))
    tape.at(8.2)
    state = ending(all_gone(tape, 9.0))
    assert state.failure == Failure(2, "n1", 1, WALL + ended_at, "rank 2 on n1 exited with code 1")


def test_the_cause_is_waited_for_as_long_as_it_may_come_and_no_longer() -> None:
    tape = training()
    tape.at(5.0, failed(3, 5.0, **NOTICED))
    assert [sent(tape.at(7.99)), sent(tape.at(8.0))] == [[], STOP]
    tape = training()
    tape.at(5.0, failed(3, 5.0, **NOTICED))
    tape.at(6.0, failed(0, 6.0))
    assert [sent(tape.at(6.29)), sent(tape.at(6.3))] == [[], STOP]


def test_a_broken_connection_yields_to_another_failure_within_a_second() -> None:
    for cause_at, culprit in ((5.008, 2), (5.99, 2), (6.5, 0)):
        tape = training()
        tape.at(5.0, failed(0, 5.0, code=1, lost_connection=True))
        assert sent(tape.at(5.98)) == []
        tape.at(cause_at, failed(2, cause_at, code=1))
        tape.at(cause_at + 0.3)
        state = ending(all_gone(tape, 8.0))
        assert state.failure is not None
        assert state.failure.rank == culprit


def test_a_broken_connection_alone_is_the_failure() -> None:
    tape = training()
    tape.at(5.0, failed(0, 5.0, code=1, lost_connection=True))
    assert [sent(tape.at(5.99)), sent(tape.at(6.0))] == [[], STOP]
    state = ending(all_gone(tape, 8.0))
    assert state.failure == Failure(0, "n0", 1, WALL + 5.0, "rank 0 on n0 exited with code 1")


@pytest.mark.parametrize(
    ("ended", "arguments"), [((1,), "rank 1"), ((1, 2), "ranks 1-2"), ((0, 1, 2), "ranks 0-2")]
)
@pytest.mark.parametrize("first", [True, False])
def test_ranks_that_ended_with_exit_code_0_before_those_that_only_noticed_are_named(
    ended: tuple[int, ...], arguments: str, first: bool
) -> None:
    tape = training()
    events = [failed(rank, 5.0, code=0) for rank in ended]
    tape.at(5.0, *(events if first else ()), failed(3, 5.0, **NOTICED), *(() if first else events))
    assert sent(tape.at(5.3)) == STOP
    state = ending(all_gone(tape, 6.0))
    assert state.failure is not None
    assert [state.failure.rank, state.failure.ended, state.failure.peer] == [3, arguments.split()[1], "n1"]
    assert (
        state.reason
        == f"{arguments} ended with exit code 0 before the others; then rank 3 on n1 exited with code 1"
    )


def test_a_rank_that_fails_after_others_completed_is_the_failure() -> None:
    tape = training()
    tape.at(5.0, *(failed(rank, 5.0, code=0) for rank in range(3)), failed(3, 5.0))
    tape.at(5.3)
    state = ending(all_gone(tape, 6.0))
    assert state.failure == Failure(3, "n1", 3, WALL + 5, "rank 3 on n1 exited with code 3")


def test_an_address_that_several_nodes_have_names_none() -> None:
    tape = coordinator()
    for node in range(2):
        tape.at(1.0, AgentJoined(node, Hello(node, f"n{node}", "10.0.0.2", 1)), MessageCame(node, Beat(0)))
    train(tape, 1.0)
    tape.at(5.0, failed(3, 5.0, **NOTICED))
    tape.at(8.0)
    state = ending(all_gone(tape, 9.0))
    assert state.failure is not None
    assert [state.failure.noticed, state.failure.peer] == [True, ""]


@pytest.mark.parametrize(
    ("lines", "arguments", "expected"),
    [
        ((), "", State.FAILED),
        (("clusterrun: out of memory: it seems",), "", State.FAILED),
        ((STARVED,), ", as the kernel does when memory runs out", State.OUT_OF_MEMORY),
    ],
)
def test_a_kill_is_attributed_to_memory_only_if_the_kernel_counted_one(
    lines: tuple[str, ...], arguments: str, expected: State
) -> None:
    tape = stopped(failed(3, 5.0, code=-9, last_lines=lines))
    state = ending(all_gone(tape, 6.0))
    reason = f"rank 3 on n1 was killed by signal 9 (SIGKILL){arguments}"
    assert (state.state, state.reason, state.exit_code) == (expected, reason, 137)


def test_the_node_is_named_if_each_node_has_one_launcher() -> None:
    tape = training(per_node=True)
    tape.at(5.0, MessageCame(1, RankExited(0, 1, 1, WALL + 5)))
    tape.at(5.3)
    assert ending(all_gone(tape, 6.0)).reason == "node 1 (n1) exited with code 1"


def test_an_attempt_that_cannot_begin_ends_the_run_with_the_previous_failure_and_the_file() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=5)
    assert [a for a in all_gone(tape, 6.0) if isinstance(a, ClaimEpoch)] == [ClaimEpoch(0)]
    state = ending(tape.at(306.0, ClaimFailed("no attempt can be begun: /r/attempts/001: Stale file handle")))
    assert (state.state, state.attempts[0].outcome, state.exit_code) == (State.FAILED, "FAILED", 1)
    assert state.reason == (
        "rank 3 on n1 exited with code 3; no attempt can be begun: /r/attempts/001: Stale file handle"
    )


def test_exits_after_the_stop_are_no_failure() -> None:
    tape = stopped(failed(3, 5.0))
    tape.at(6.0, failed(0, 4.0, code=-15, stopped=True))
    assert ending(all_gone(tape, 7.0)).failure == Failure(
        3, "n1", 3, WALL + 5, "rank 3 on n1 exited with code 3"
    )


def test_a_failed_rank_is_restarted_in_place_after_all_nodes_are_clean() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    assert tape.does(6.0, MessageCame(0, RanksGone(0))) == []
    assert tape.does(6.1, MessageCame(1, RanksGone(0))) == [ClaimEpoch(0)]
    assert sent(tape.at(6.2, EpochClaimed(1))) == [(0, ReservePort(1))]
    train(tape, 6.3, epoch=1)
    state = tape.state(6.6)
    assert [(a.epoch, a.outcome, a.reason) for a in state.attempts] == [
        (0, "FAILED", "first start"),
        (1, "", "restart 1 of 1: rank 3 on n1 exited with code 3"),
    ]
    assert [state.phase, state.epoch] == [Phase.TRAINING, 1]


def test_the_reason_of_an_attempts_end_is_recorded_once() -> None:
    tape = training(max_restarts=1)
    tape.at(5.0, failed(3, 5.0))
    messages = [*tape.at(5.3), *all_gone(tape, 6.0)]
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, epoch=1)
    tape.at(7.0, MessageCame(1, RankExited(1, 2, 5, WALL + 7)))
    messages += [*tape.at(7.3), *all_gone(tape, 8.0, epoch=1)]
    assert [entry.text for entry in messages if isinstance(entry, Note)] == [
        "attempt 0: ending all ranks: rank 3 on n1 exited with code 3",
        "restart 1 of 1",
        "attempt 1: ending all ranks: rank 2 on n1 exited with code 5",
        "FAILED",
    ]


def test_restarts_are_counted_and_end() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    all_gone(tape, 6.0)
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, epoch=1)
    tape.at(7.0, MessageCame(1, RankExited(1, 2, 5, WALL + 7)))
    tape.at(7.3)
    assert [ending(all_gone(tape, 8.0, epoch=1)).exit_code, tape.machine.wakes_at() is None] == [5, False]


def test_another_port_is_tried_three_times_without_a_charge() -> None:
    tape = training()
    for epoch in range(3):
        tape.at(5.0 + epoch, MessageCame(0, RankExited(epoch, 0, 1, WALL, collision=True)))
        tape.at(5.4 + epoch)
        assert ClaimEpoch(epoch) in all_gone(tape, 5.5 + epoch, epoch=epoch)
        tape.at(5.6 + epoch, EpochClaimed(epoch + 1))
        train(tape, 5.7 + epoch, epoch=epoch + 1)
    tape.at(9.0, MessageCame(0, RankExited(3, 0, 1, WALL, collision=True)))
    tape.at(9.4)
    assert ending(all_gone(tape, 9.5, epoch=3)).state is State.FAILED


def test_an_unkillable_process_forbids_a_restart_that_needs_its_node_and_is_named() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=3)
    state = ending(all_gone(tape, 6.0, stuck=("77 in nfs_wait",)))
    text = "rank 3 on n1 exited with code 3; still there, not to be killed: n0: 77 in nfs_wait"
    assert [state.state, state.reason] == [State.FAILED, text]


def test_a_lost_node_ends_the_attempt_and_is_dead_only_when_its_lease_is_out() -> None:
    tape = training()
    tape.at(4.0, MessageCame(1, Beat(1)))
    tape.at(6.0, AgentLeft(1, "connection reset"))
    assert sent(tape.at(6.3)) == [(0, StopRanks(0, 8.0))]
    for second in range(7, 27):
        tape.at(float(second), MessageCame(0, RanksGone(0)), MessageCame(0, Beat(second)))
    assert sent(tape.at(26.9)) == []
    state = ending(tape.at(27.0))
    text = "n1 (node 1) was lost: connection reset"
    assert [state.state, state.reason, state.exit_code] == [State.NODE_FAIL, text, 1]
    assert state.failure == Failure(-1, "n1", 1, WALL + 4, text)


def test_a_silent_node_is_lost_after_twelve_seconds() -> None:
    tape = training()
    for second in range(2, 14):
        assert DropLink(1) not in tape.at(float(second), Tick(), MessageCame(0, Beat(second)))
    assert DropLink(1) in tape.at(14.0)


def test_a_coordinator_that_was_suspended_reads_its_messages_before_it_judges() -> None:
    tape = training()
    tape.at(2.0)
    assert DropLink(1) not in tape.at(30.0)
    tape.at(30.0, MessageCame(0, Beat(1)), MessageCame(1, Beat(1)))
    assert DropLink(1) not in tape.at(31.5)


@pytest.mark.parametrize("seconds", [13.0, 70.0, 86400.0])
def test_a_suspension_of_the_whole_job_is_no_silence_of_a_node(seconds: float) -> None:
    tape = training(max_restarts=0)
    tape.at(2.0)
    woke = 2.0 + seconds
    assert sent(tape.at(woke, StoodStill(seconds))) == []
    tape.at(woke + 2.0, MessageCame(0, Beat(1)))  # the other node is woken some seconds later
    assert DropLink(1) not in tape.at(woke + 9.0)
    tape.at(woke + 9.0, MessageCame(1, Beat(1)))
    assert tape.state(woke + 12.5).phase is Phase.TRAINING
    assert DropLink(0) in [a for second in range(13, 25) for a in tape.at(woke + second)]


def test_a_failure_while_the_coordinator_stood_still_names_the_node_where_it_did() -> None:
    tape = training()
    tape.at(2.0)
    tape.at(30.0, StoodStill(28.0), failed(3, 25.0))
    tape.at(30.3)
    still = "rank 3 on n1 exited with code 3; the coordinator on login stood still then, for 28 s"
    assert ending(all_gone(tape, 31.0)).reason == still


OVER_MEMORY = "slurmstepd-n1: error: StepId=3.0 exceeded memory limit (698724352 > 629145600), being killed"


@pytest.mark.parametrize("is_line_first", [True, False])
@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_step_that_slurm_kills_for_its_memory_is_out_of_memory_and_no_lost_node(
    is_line_first: bool, max_restarts: int
) -> None:
    """Slurm kills the ranks, the agents and srun; their ends arrive in any order."""
    tape = training(max_restarts=max_restarts)
    line, agent_left = MemoryKilled("n1", OVER_MEMORY), AgentLeft(0, "it closed the connection")
    killed = failed(3, 4.9, code=-9)
    tape.at(5.0, *((line, killed, agent_left) if is_line_first else (agent_left, killed, line)))
    tape.at(5.1, LauncherEnded(137, (OVER_MEMORY,)), AgentLeft(1, "it closed the connection"))
    tape.at(5.4)
    state = ending(tape.at(60.0) + tape.at(61.0))
    assert (state.state, state.exit_code) == (State.OUT_OF_MEMORY, 137)
    assert state.failure is not None
    assert (state.failure.node, state.failure.rank) == ("n1", -1)
    assert "exceeded memory limit (698724352 > 629145600)" in state.failure.error


def test_an_error_of_a_rank_is_reported_although_the_step_is_killed_for_its_memory_later() -> None:
    tape = training()
    tape.at(5.0, failed(3, 5.0))
    tape.at(5.1, MemoryKilled("n1", OVER_MEMORY), AgentLeft(0, "reset"), AgentLeft(1, "reset"))
    tape.at(5.4)
    state = ending(tape.at(60.0) + tape.at(61.0))
    assert (state.state, state.failure and state.failure.rank) == (State.FAILED, 3)


def test_a_memory_kill_that_ends_no_agent_ends_nothing() -> None:
    tape = training()
    assert sent(tape.does(5.0, MemoryKilled("n1", OVER_MEMORY)) + tape.does(8.0)) == []
    tape.at(30.0, AgentLeft(1, "reset"))
    tape.at(30.3)
    assert ending(tape.at(80.0, MessageCame(0, RanksGone(0)))).state is State.NODE_FAIL


def test_a_node_that_left_a_suspended_coordinator_left_for_that_reason() -> None:
    tape = training()
    tape.at(2.0)
    tape.at(30.0, StoodStill(28.0), Tick(), AgentLeft(1, "it closed the connection"))
    tape.at(30.3)
    state = ending(tape.at(53.0, MessageCame(0, RanksGone(0))))
    text = "n1 (node 1) was lost: it closed the connection"
    assert state.reason == f"{text}; the coordinator on login stood still then, for 28 s"
    assert state.failure is not None
    assert state.failure.node == ""


def test_nodes_that_end_their_ranks_because_the_coordinator_stood_still_are_not_to_blame() -> None:
    tape = training()
    tape.at(2.0)
    tape.at(26.0, StoodStill(24.0), Tick(), MessageCame(1, RanksGone(0)))
    tape.at(26.3)
    failure = ending(tape.at(27.0, MessageCame(0, RanksGone(0)))).failure
    assert failure is not None
    assert (failure.node, failure.why) == (
        "",
        "n1 (node 1) ended its ranks unasked; its agent says why in job.out;"
        " the coordinator on login stood still then, for 24 s",
    )


def test_a_node_that_ended_its_ranks_unasked_gives_its_reason() -> None:
    tape = training()
    tape.at(2.0, MessageCame(1, RanksGone(0, why="its first process was killed")))
    tape.at(2.3)
    reason = ending(tape.at(3.0, MessageCame(0, RanksGone(0)))).reason
    assert reason == "n1 (node 1) ended its ranks unasked: its first process was killed"


def test_a_failure_after_the_coordinator_stood_still_is_nothing_of_that() -> None:
    tape = training()
    tape.at(2.0)
    tape.at(30.0, StoodStill(28.0), Tick(), MessageCame(0, Beat(1)), MessageCame(1, Beat(1)))
    tape.at(32.0, failed(3, 32.0))
    tape.at(32.4)
    assert ending(all_gone(tape, 33.0)).reason == "rank 3 on n1 exited with code 3"


def test_a_node_that_went_silent_before_another_nodes_rank_failed_is_the_cause() -> None:
    tape = training()
    tape.at(4.0, MessageCame(0, Beat(1)))
    tape.at(5.0, failed(0, 5.0))
    tape.at(5.1, AgentLeft(1, "reset"))
    tape.at(5.3)
    tape.at(6.0, MessageCame(0, RanksGone(0)))
    assert ending(tape.at(24.0)).reason == "n1 (node 1) was lost: reset"


def test_the_loss_of_a_node_without_work_is_harmless() -> None:
    tape = training()
    tape.at(2.0, failed(0, 2.0, code=0), failed(1, 2.0, code=0), MessageCame(0, RanksGone(0)))
    assert tape.does(3.0, AgentLeft(0, "reset")) == []
    tape.at(4.0, failed(2, 4.0, code=0), failed(3, 4.0, code=0))
    assert ending(tape.at(4.1, MessageCame(1, RanksGone(0)))).state is State.COMPLETED


def test_a_completed_run_warns_of_processes_that_outlived_the_ranks_and_were_ended() -> None:
    tape = training()
    left_over = RanksGone(0, cut=("python (7)",))
    tape.at(2.0, failed(0, 2.0, code=0), failed(1, 2.0, code=0), MessageCame(0, left_over))
    tape.at(4.0, failed(2, 4.0, code=0), failed(3, 4.0, code=0))
    state = ending(tape.at(4.1, MessageCame(1, RanksGone(0))))
    (warning,) = state.warnings
    assert state.state is State.COMPLETED and warning.startswith("python (7) on n0 ")


def test_a_node_that_ends_its_ranks_unasked_has_failed() -> None:
    tape = training()
    tape.at(
        5.0,
        failed(2, 5.0, code=-9, stopped=True),
        failed(3, 5.0, code=-9, stopped=True),
        MessageCame(1, RanksGone(0)),
    )
    assert sent(tape.at(5.3)) == [(0, StopRanks(0, 8.0))]
    assert ending(tape.at(6.0, MessageCame(0, RanksGone(0)))).state is State.NODE_FAIL
