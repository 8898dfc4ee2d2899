"""The coordinator's laws, one short tape each: given events, exact actions."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from clusterrun.agent.actions import ClaimEpoch, DropLink, EndLauncher, Finish, LaunchAgents, Note, Send
from clusterrun.agent.coordinator import Coordinator
from clusterrun.agent.events import (
    AgentJoined,
    AgentLeft,
    CancelAsked,
    EpochClaimed,
    Heard,
    LauncherEnded,
    Now,
    SignalCame,
    Superseded,
    Tick,
)
from clusterrun.agent.messages import (
    Ack,
    Beat,
    Farewell,
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    ReservePort,
    SignalRanks,
    SignalSeen,
    StartFailed,
    StartRanks,
    StopRanks,
)
from clusterrun.model.orders import Orders
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State
from tests.agent.tapes import MEETING, WALL, WORLD, Tape, coordinator, hello, join, sent, train, training

STOP = [(0, StopRanks(0, 8.0)), (1, StopRanks(0, 8.0))]
FAREWELL = [(0, Farewell()), (1, Farewell())]


def failed(rank: int, at: float, code: int = 3, **more: Any) -> Heard:
    """A rank failed at ``at`` seconds."""
    return Heard(rank // 2, RankExited(0, rank, code, WALL + at, **more))


def gone(tape: Tape, time: float, epoch: int = 0, **stuck: Any) -> list[Any]:
    """Both nodes have nothing left."""
    return tape.at(time, Heard(0, RanksGone(epoch, **stuck)), Heard(1, RanksGone(epoch)))


def end(actions: list[Any]) -> RunState:
    """The state that is saved last."""
    return next(action.state for action in reversed(actions) if hasattr(action, "state"))


def stopped(*events: Any, max_restarts: int = 0) -> Tape:
    """Training, then ``events`` at 5 s and the stop that follows."""
    tape = training(max_restarts=max_restarts)
    tape.at(5.0, *events)
    tape.at(5.3)
    return tape


def test_a_run_begins_with_a_claim_and_then_the_launch() -> None:
    tape = Tape(Coordinator(Orders("r", "r", 1, 1, 0, 1, ("t",), "/"), "h", 1))
    assert [tape.does(0.0), tape.does(0.1, EpochClaimed(0))] == [[ClaimEpoch(-1)], [LaunchAgents()]]


def test_when_all_nodes_beat_node_0_looks_for_a_port_and_then_all_start_in_node_order() -> None:
    tape = coordinator()
    joined = tape.does(
        1.0, AgentJoined(9, hello(1)), Heard(9, Beat(0)), AgentJoined(4, hello(0)), Heard(4, Beat(0))
    )
    assert sent(joined) == [(9, Ack(0, WALL + 1)), (4, Ack(0, WALL + 1)), (4, ReservePort(0))]
    starts = [(9, StartRanks(0, WORLD, 1, MEETING)), (4, StartRanks(0, WORLD, 0, MEETING))]
    assert sent(tape.does(1.1, Heard(4, PortReserved(0, 29000)))) == starts


def test_joining_is_not_yet_being_present() -> None:
    tape = coordinator()
    assert tape.does(1.0, AgentJoined(0, hello(0)), AgentJoined(1, hello(1)), Heard(0, Beat(0))) == [
        Send(0, Ack(0, WALL + 1))
    ]


def test_the_first_agent_of_a_node_keeps_it() -> None:
    tape = coordinator()
    tape.at(1.0, AgentJoined(0, hello(0, pid=1)))
    assert tape.does(1.0, AgentJoined(5, hello(0, pid=2))) == [DropLink(5)]


def test_an_agent_that_was_never_welcomed_takes_its_own_place_over() -> None:
    tape = coordinator()
    tape.at(1.0, AgentJoined(0, hello(0)), AgentJoined(1, hello(1)), Heard(1, Beat(0)))
    assert tape.does(6.0, AgentJoined(7, hello(0))) == [DropLink(0)]
    assert sent(tape.does(6.1, Heard(7, Beat(0))))[-1] == (7, ReservePort(0))


@pytest.mark.parametrize("stranger", [hello(2), hello(-1), hello(0, epoch=1)])
def test_an_unknown_node_and_one_that_has_seen_a_later_epoch_are_dropped(stranger: Any) -> None:
    assert coordinator().does(1.0, AgentJoined(3, stranger)) == [DropLink(3)]


def test_who_comes_late_gets_a_farewell() -> None:
    assert training().does(2.0, AgentJoined(8, hello(1, pid=9))) == [Send(8, Farewell())]


def test_who_does_not_join_is_named() -> None:
    tape = coordinator(nodes=3)
    tape.at(1.0, AgentJoined(1, hello(1)), Heard(1, Beat(0)))
    for second in range(5, 121, 5):
        tape.at(float(second), Heard(1, Beat(second)))
    actions = tape.at(120.4)
    assert (
        end(actions).reason
        == "nodes 0 and 2 of 3 did not join within 120.3 s; what the launcher said is in job.out"
    )
    assert [end(actions).state, EndLauncher() in actions] == [State.FAILED, True]


def test_a_launcher_that_ends_before_all_joined_is_the_failure_with_its_words() -> None:
    actions = coordinator().at(1.0, LauncherEnded(1, ("srun: error", "no such host")))
    words = "the launcher ended with code 1: srun: error / no such host (before nodes 0 and 1 had joined)"
    assert [end(actions).reason, actions[-1]] == [words, Finish(1)]


def test_a_launcher_that_ends_while_agents_live_ends_nothing() -> None:
    assert training().does(2.0, LauncherEnded(137, ("killed",))) == []


def test_every_beat_is_acknowledged_and_only_by_its_number() -> None:
    assert training().does(2.0, Heard(1, Beat(7))) == [Send(1, Ack(7, WALL + 2))]


def test_a_whole_run_ends_completed_when_every_rank_exited_0_and_every_node_is_clean() -> None:
    tape = training()
    for rank in range(4):
        assert tape.does(9.0, failed(rank, 9.0, code=0)) == []
    actions = gone(tape, 9.5)
    state = end(actions)
    assert sent(actions) == FAREWELL
    assert [state.state, state.phase, state.exit_code, state.reason] == [
        State.COMPLETED,
        Phase.ENDED,
        0,
        "every rank exited 0",
    ]
    assert state.attempts == (Attempt(0, "first start", ("n0", "n1"), WALL, WALL + 9.5, "COMPLETED"),)
    assert tape.does(9.6, AgentLeft(0, ""), AgentLeft(1, ""), LauncherEnded(0)) == [Finish(0)]


def test_ranks_that_ended_well_early_are_waited_with_without_limit() -> None:
    tape = training()
    tape.at(2.0, failed(0, 2.0, code=0), failed(1, 2.0, code=0), Heard(0, RanksGone(0)))
    for second in range(5, 2000, 5):
        assert sent(tape.at(float(second), Heard(0, Beat(second)), Heard(1, Beat(second))))


def test_ranks_are_stopped_a_moment_after_the_first_failure() -> None:
    tape = training()
    assert sent(tape.at(5.0, failed(3, 5.0))) == []
    assert [sent(tape.at(5.29)), sent(tape.at(5.3))] == [[], STOP]


@pytest.mark.parametrize("later", [5.1, 6.0])
def test_the_first_failure_in_time_is_the_one_reported_even_where_its_news_comes_last(later: float) -> None:
    tape = training()
    tape.at(5.0, failed(3, 4.9))
    tape.at(5.3)
    tape.at(later + 0.3, failed(0, 4.5, code=-11))
    state = end(gone(tape, 7.0))
    words = "rank 0 on n0 was killed by signal 11 (SIGSEGV)"
    assert state.failure == Failure(0, "n0", -11, WALL + 4.5, words)
    assert [state.reason, state.exit_code, state.state] == [words, 139, State.FAILED]


def test_what_ends_after_the_stop_is_no_failure() -> None:
    tape = stopped(failed(3, 5.0))
    tape.at(6.0, failed(0, 4.0, code=-15, stopped=True))
    assert end(gone(tape, 7.0)).failure == Failure(3, "n1", 3, WALL + 5, "rank 3 on n1 exited with code 3")


def test_a_failed_rank_is_restarted_in_place_once_all_nodes_are_clean() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    assert tape.does(6.0, Heard(0, RanksGone(0))) == []
    assert tape.does(6.1, Heard(1, RanksGone(0))) == [ClaimEpoch(0)]
    assert sent(tape.at(6.2, EpochClaimed(1))) == [(0, ReservePort(1))]
    train(tape, 6.3, epoch=1)
    state = tape.state(6.6)
    assert [(a.epoch, a.outcome, a.reason) for a in state.attempts] == [
        (0, "FAILED", "first start"),
        (1, "", "restart 1 of 1: rank 3 on n1 exited with code 3"),
    ]
    assert [state.phase, state.epoch] == [Phase.TRAINING, 1]


def test_restarts_are_counted_and_end() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    gone(tape, 6.0)
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, epoch=1)
    tape.at(7.0, Heard(1, RankExited(1, 2, 5, WALL + 7)))
    tape.at(7.3)
    assert [end(gone(tape, 8.0, epoch=1)).exit_code, tape.machine.wakes_at() is None] == [5, False]


def test_another_port_is_tried_three_times_without_a_charge() -> None:
    tape = training()
    for epoch in range(3):
        tape.at(5.0 + epoch, Heard(0, RankExited(epoch, 0, 1, WALL, collision=True)))
        tape.at(5.4 + epoch)
        assert ClaimEpoch(epoch) in gone(tape, 5.5 + epoch, epoch=epoch)
        tape.at(5.6 + epoch, EpochClaimed(epoch + 1))
        train(tape, 5.7 + epoch, epoch=epoch + 1)
    tape.at(9.0, Heard(0, RankExited(3, 0, 1, WALL, collision=True)))
    tape.at(9.4)
    assert end(gone(tape, 9.5, epoch=3)).state is State.FAILED


def test_what_cannot_be_killed_forbids_a_restart_and_is_named() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=3)
    state = end(gone(tape, 6.0, stuck=("77 in nfs_wait",)))
    words = "rank 3 on n1 exited with code 3; still there, not to be killed: n0: 77 in nfs_wait"
    assert [state.state, state.reason] == [State.FAILED, words]


def test_a_lost_node_ends_the_attempt_and_is_dead_only_when_its_lease_is_out() -> None:
    tape = training(max_restarts=3)
    tape.at(4.0, Heard(1, Beat(1)))
    tape.at(6.0, AgentLeft(1, "connection reset"))
    assert sent(tape.at(6.3)) == [(0, StopRanks(0, 8.0))]
    for second in range(7, 27):
        tape.at(float(second), Heard(0, RanksGone(0)), Heard(0, Beat(second)))
    assert sent(tape.at(26.9)) == []
    state = end(tape.at(27.0))
    words = "n1 (node 1) was lost: connection reset"
    assert [state.state, state.reason, state.exit_code] == [State.NODE_FAIL, words, 1]
    assert state.failure == Failure(-1, "n1", 1, WALL + 4, words)


def test_a_silent_node_is_lost_after_fourteen_seconds() -> None:
    tape = training()
    for second in range(2, 16):
        assert DropLink(1) not in tape.at(float(second), Tick(), Heard(0, Beat(second)))
    assert DropLink(1) in tape.at(16.0)


def test_a_coordinator_that_slept_judges_nobody_before_it_has_read_what_came() -> None:
    tape = training()
    tape.at(2.0)
    assert DropLink(1) not in tape.at(30.0)
    tape.at(30.0, Heard(0, Beat(1)), Heard(1, Beat(1)))
    assert DropLink(1) not in tape.at(31.5)


def test_a_node_that_fell_silent_before_a_rank_failed_elsewhere_is_the_cause() -> None:
    tape = training()
    tape.at(4.0, Heard(0, Beat(1)))
    tape.at(5.0, failed(0, 5.0))
    tape.at(5.1, AgentLeft(1, "reset"))
    tape.at(5.3)
    tape.at(6.0, Heard(0, RanksGone(0)))
    assert end(tape.at(24.0)).reason == "n1 (node 1) was lost: reset"


def test_a_node_with_nothing_left_to_do_is_lost_without_harm() -> None:
    tape = training()
    tape.at(2.0, failed(0, 2.0, code=0), failed(1, 2.0, code=0), Heard(0, RanksGone(0)))
    assert tape.does(3.0, AgentLeft(0, "reset")) == []
    tape.at(4.0, failed(2, 4.0, code=0), failed(3, 4.0, code=0))
    assert end(tape.at(4.1, Heard(1, RanksGone(0)))).state is State.COMPLETED


def test_a_node_that_ends_its_ranks_unasked_has_failed() -> None:
    tape = training()
    tape.at(
        5.0,
        failed(2, 5.0, code=-9, stopped=True),
        failed(3, 5.0, code=-9, stopped=True),
        Heard(1, RanksGone(0)),
    )
    assert sent(tape.at(5.3)) == [(0, StopRanks(0, 8.0))]
    assert end(tape.at(6.0, Heard(0, RanksGone(0)))).state is State.NODE_FAIL


def test_ranks_that_could_not_be_started_end_the_run_with_the_node_and_the_reason() -> None:
    tape = coordinator(max_restarts=3)
    join(tape, 1.0)
    tape.at(1.0, Heard(0, PortReserved(0, 29000)), Heard(1, StartFailed(0, "no such program")))
    assert sent(tape.at(1.3)) == STOP
    state = end(gone(tape, 2.0))
    assert [state.state, state.reason] == [State.FAILED, "n1 could not start its ranks: no such program"]


def test_a_port_that_cannot_be_had_ends_the_run() -> None:
    tape = coordinator()
    join(tape, 1.0)
    state = end(tape.at(1.1, Heard(0, PortReserved(0, 0, "EMFILE"))))
    assert [state.state, state.reason] == [State.FAILED, "n0 could not reserve a port: EMFILE"]


@pytest.mark.parametrize(
    ("request_", "reason", "code"),
    [
        (SignalCame(signal.SIGTERM), "the coordinator got SIGTERM", 143),
        (SignalCame(signal.SIGINT), "the coordinator got SIGINT", 130),
        (Heard(1, SignalSeen(signal.SIGTERM)), "n1 got SIGTERM", 143),
        (CancelAsked(), "cancelled by request", 130),
    ],
)
def test_a_request_to_end_stops_all_ranks_and_ends_cancelled(request_: Any, reason: str, code: int) -> None:
    tape = training()
    assert sent(tape.at(3.0, request_)) == STOP
    state = end(gone(tape, 4.0))
    assert [state.state, state.reason, state.exit_code] == [State.CANCELLED, reason, code]


def test_asking_again_changes_nothing() -> None:
    tape = training()
    tape.at(3.0, CancelAsked())
    assert sent(tape.at(4.0, SignalCame(signal.SIGTERM), CancelAsked())) == []
    assert end(gone(tape, 5.0)).reason == "cancelled by request"


def test_ranks_that_exit_0_because_they_were_told_to_end_have_not_completed() -> None:
    tape = training()
    tape.at(3.0, CancelAsked())
    tape.at(4.0, *(failed(rank, 4.0, code=0, stopped=True) for rank in range(4)))
    assert end(gone(tape, 5.0)).state is State.CANCELLED


def test_a_request_right_after_a_failure_is_its_cause() -> None:
    tape = training()
    tape.at(3.0, failed(3, 3.0, code=1))
    assert sent(tape.at(3.2, SignalCame(signal.SIGTERM))) == STOP
    assert end(gone(tape, 4.0)).state is State.CANCELLED


def test_a_request_long_after_a_failure_only_forbids_the_restart() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    tape.at(9.0, CancelAsked())
    state = end(gone(tape, 10.0))
    assert [state.state, state.failure is not None] == [State.CANCELLED, True]


def test_a_request_before_any_rank_runs_ends_at_once() -> None:
    actions = coordinator().at(1.0, CancelAsked())
    assert [end(actions).state, EndLauncher() in actions] == [State.CANCELLED, True]


def test_a_local_time_limit_ends_the_run_as_timeout() -> None:
    tape = training(time_limit=60.0)
    for second in range(5, 60, 5):
        tape.at(float(second), Heard(0, Beat(second)), Heard(1, Beat(second)))
    assert [sent(tape.at(59.9)), sent(tape.at(60.0))] == [[], STOP]
    state = end(gone(tape, 61.0))
    assert [state.state, state.reason] == [State.TIMEOUT, "the time limit of 60 s was reached"]


def test_a_notice_is_passed_on_once_however_many_bring_it() -> None:
    tape = training()
    passed = [(0, SignalRanks(0, signal.SIGUSR2)), (1, SignalRanks(0, signal.SIGUSR2))]
    assert sent(tape.at(2.0, SignalCame(signal.SIGUSR2))) == passed
    assert sent(tape.at(2.5, Heard(0, SignalSeen(signal.SIGUSR2)))) == []


def test_messages_of_an_older_epoch_are_ignored_and_of_a_newer_one_cost_the_link() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    gone(tape, 6.0)
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, epoch=1)
    assert tape.does(7.0, Heard(1, RankExited(0, 2, 9, 0.0)), Heard(1, RanksGone(0))) == []
    assert tape.does(7.0, Heard(1, RanksGone(2))) == [DropLink(1)]


def test_a_report_of_a_rank_that_is_not_its_own_costs_the_link() -> None:
    assert training().does(2.0, Heard(1, RankExited(0, 0, 0, 0.0))) == [DropLink(1)]


def test_a_superseded_coordinator_acknowledges_nothing_writes_nothing_and_ends() -> None:
    tape = training()
    assert sent(tape.at(2.0, Superseded(1))) == STOP
    assert tape.does(3.0, Heard(0, Beat(5))) == []
    actions = gone(tape, 4.0) + tape.at(4.1, AgentLeft(0, ""), AgentLeft(1, ""), LauncherEnded(0))
    assert [a for a in actions if not isinstance(a, Note)] == [
        Send(0, Farewell()),
        Send(1, Farewell()),
        Finish(1),
    ]


def test_after_an_attempt_that_never_said_how_it_ended_ranks_wait_until_it_must_be_dead() -> None:
    tape = Tape(Coordinator(Orders("r", "r", 2, 2, 0, 1, ("t",), "/"), "h", 1))
    tape.at(0.0)
    earlier = (Attempt(0, "first start", ("n0", "n1"), 5.0),)
    tape.at(0.0, EpochClaimed(1, earlier, quiet=False))
    assert join(tape, 1.0) == []
    for second in range(2, 53):
        acks = [Heard(0, Beat(second)), Heard(1, Beat(second))]
        assert (0, ReservePort(1)) not in sent(tape.at(float(second), *acks))
    actions = tape.at(53.0)
    assert sent(actions) == [(0, ReservePort(1))]
    assert [(a.epoch, a.outcome) for a in tape.state(53.2).attempts] == [(0, "UNKNOWN"), (1, "")]


def test_a_node_that_never_says_it_is_clean_is_given_up_and_fenced() -> None:
    tape = stopped(failed(3, 5.0))
    tape.at(6.0, Heard(0, RanksGone(0)))
    for second in range(7, 24):
        tape.at(float(second), Heard(0, Beat(second)), Heard(1, Beat(second)))
    assert DropLink(1) in tape.at(23.3)
    for second in range(24, 46):
        assert (0, Farewell()) not in sent(tape.at(float(second), Heard(0, Beat(second))))
    assert sent(tape.at(46.0)) == [(0, Farewell())]


def test_the_end_waits_for_agents_and_launcher_but_not_for_ever() -> None:
    tape = training()
    tape.at(3.0, CancelAsked())
    gone(tape, 4.0)
    assert [tape.does(8.9), tape.does(9.0), tape.does(13.9), tape.does(14.0)] == [
        [],
        [EndLauncher()],
        [],
        [Finish(130)],
    ]


def test_the_state_is_saved_at_most_five_times_a_second_and_at_least_every_ten_seconds() -> None:
    machine = Coordinator(Orders("r", "r", 500, 1, 0, 1, ("t",), "/"), "h", 1)
    saves: list[float] = []

    def at(time: float, event: Any) -> None:
        saves.extend(time for action in machine.on(Now(time, time), event) if hasattr(action, "state"))

    at(0.0, Tick())
    at(0.0, EpochClaimed(0))
    for node in range(400):
        at(1.0 + node / 400, AgentJoined(node, hello(node)))
        at(1.0 + node / 400, Heard(node, Beat(0)))
    assert len([time for time in saves if time >= 1.0]) <= 6
    before = len(saves)
    for tenth in range(20, 130):
        at(tenth / 10, Tick())
    assert len(saves) - before == 2


def test_a_message_costs_the_same_whatever_the_number_of_nodes() -> None:
    """Counted in lines of Python run, not in seconds."""
    import sys

    def cost(nodes: int) -> int:
        tape = coordinator(nodes=nodes)
        join(tape, 1.0, nodes)
        train(tape, 1.1, nodes=nodes)
        count = 0

        def line(frame: Any, event: str, arg: Any) -> Any:
            nonlocal count
            count += 1
            return line

        sys.settrace(line)
        tape.machine.on(Now(1.2, 1.2), Heard(1, Beat(1)))
        tape.machine.on(Now(1.2, 1.2), Heard(1, RankExited(0, 2, 0, 0.0)))
        sys.settrace(None)
        return count

    assert cost(1000) == cost(3)


def test_ranks_started_everywhere_is_training() -> None:
    tape = coordinator()
    join(tape, 1.0)
    tape.at(1.0, Heard(0, PortReserved(0, 29000)), Heard(0, RanksStarted(0)))
    assert tape.state(1.4).phase is Phase.STARTING
    tape.at(2.0, Heard(1, RanksStarted(0)))
    assert tape.state(2.2).phase is Phase.TRAINING
