"""The coordinator's laws of joining, training and saving, one short tape each."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.coordinator.actions import ClaimEpoch, DropLink, EndLauncher, Finish, LaunchAgents, Send
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import (
    AgentJoined,
    AgentLeft,
    EpochClaimed,
    LauncherEnded,
    MessageCame,
    Overloaded,
)
from clusterrun.model.orders import Orders
from clusterrun.model.record import Attempt
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import (
    Ack,
    Beat,
    Farewell,
    NodeOverloaded,
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    ReservePort,
    StartRanks,
)
from clusterrun.runtime.machine_events import Now, Tick
from tests.coordinator.tapes import (
    FAREWELL,
    MEETING,
    WALL,
    WORLD,
    Tape,
    all_gone,
    coordinator,
    ending,
    failed,
    hello,
    join,
    sent,
    train,
    training,
)


def test_a_run_begins_with_a_claim_and_then_the_launch() -> None:
    tape = Tape(Coordinator(Orders("r", "r", 1, 1, 0, 1, ("t",), "/"), "h", 1))
    assert [tape.does(0.0), tape.does(0.1, EpochClaimed(0))] == [[ClaimEpoch(-1)], [LaunchAgents()]]


def test_node_0_reserves_a_port_after_all_heartbeats_and_all_start_in_node_order() -> None:
    tape = coordinator()
    joined = tape.does(
        1.0,
        AgentJoined(9, hello(1)),
        MessageCame(9, Beat(0)),
        AgentJoined(4, hello(0)),
        MessageCame(4, Beat(0)),
    )
    assert sent(joined) == [(9, Ack(0, WALL + 1)), (4, Ack(0, WALL + 1)), (4, ReservePort(0))]
    starts = [(4, StartRanks(0, WORLD, 0, MEETING)), (9, StartRanks(0, WORLD, 1, MEETING))]
    assert sent(tape.does(1.1, MessageCame(4, PortReserved(0, 29000)))) == starts


def test_joining_is_not_yet_being_present() -> None:
    tape = coordinator()
    assert tape.does(1.0, AgentJoined(0, hello(0)), AgentJoined(1, hello(1)), MessageCame(0, Beat(0))) == [
        Send(0, Ack(0, WALL + 1))
    ]


def test_the_first_agent_of_a_node_keeps_it() -> None:
    tape = coordinator()
    tape.at(1.0, AgentJoined(0, hello(0, pid=1)))
    assert tape.does(1.0, AgentJoined(5, hello(0, pid=2))) == [DropLink(5)]


def test_an_agent_that_got_no_welcome_may_join_again_for_its_place() -> None:
    tape = coordinator()
    tape.at(1.0, AgentJoined(0, hello(0)), AgentJoined(1, hello(1)), MessageCame(1, Beat(0)))
    assert tape.does(6.0, AgentJoined(7, hello(0))) == [DropLink(0)]
    assert sent(tape.does(6.1, MessageCame(7, Beat(0))))[-1] == (7, ReservePort(0))


@pytest.mark.parametrize("stranger", [hello(2), hello(-1), hello(0, epoch=1)])
def test_an_unknown_node_and_one_with_a_later_epoch_are_disconnected(stranger: Any) -> None:
    assert coordinator().does(1.0, AgentJoined(3, stranger)) == [DropLink(3)]


def test_a_late_agent_gets_a_farewell() -> None:
    assert training().does(2.0, AgentJoined(8, hello(1, pid=9))) == [Send(8, Farewell())]


def test_a_node_that_does_not_join_is_named() -> None:
    tape = coordinator(nodes=3)
    tape.at(1.0, AgentJoined(1, hello(1)), MessageCame(1, Beat(0)))
    for second in range(5, 121, 5):
        tape.at(float(second), MessageCame(1, Beat(second)))
    actions = tape.at(120.4)
    assert (
        ending(actions).reason
        == "nodes 0 and 2 of 3 did not join within 120 s; what the launcher said is in job.out"
    )
    assert [ending(actions).state, EndLauncher() in actions] == [State.FAILED, True]


def overloaded(until: float) -> Tape:
    """Return a coordinator of two nodes, one of them joined. Its machine is overloaded until ``until``."""
    tape = coordinator(nodes=2)
    tape.at(1.0, AgentJoined(1, hello(1)), MessageCame(1, Beat(0)))
    time = 5.0
    while time < until:
        tape.at(time, MessageCame(1, Beat(int(time))), Overloaded(5.0))
        assert EndLauncher() not in tape.at(time + 0.1), time
        time += 5.0
    return tape


def test_an_agent_that_joins_late_on_an_overloaded_machine_is_welcome() -> None:
    tape = overloaded(600.0)
    assert sent(tape.does(601.0, AgentJoined(0, hello(0)), MessageCame(0, Beat(0))))[-1] == (
        0,
        ReservePort(0),
    )


def test_an_overloaded_machine_gets_five_times_the_limit_more() -> None:
    tape = overloaded(715.0)
    tape.at(720.0, MessageCame(1, Beat(720)), Overloaded(5.0))
    assert ending(tape.at(726.0, MessageCame(1, Beat(726)), Overloaded(6.0), Tick())).reason.startswith(
        "node 0 of 2 did not join within 726 s"
    )


@pytest.mark.parametrize("is_overloaded", [False, True])
def test_ranks_that_start_late_on_an_overloaded_node_end_nothing(is_overloaded: bool) -> None:
    tape = coordinator()
    join(tape, 1.0)
    tape.at(1.1, MessageCame(0, PortReserved(0, 29000)))
    for second in range(5, 140, 5):
        reports = [MessageCame(1, NodeOverloaded(5.0))] if is_overloaded else []
        beats = [MessageCame(node, Beat(second)) for node in (0, 1)]
        tape.at(float(second), MessageCame(0, RanksStarted(0)), *beats, *reports, Tick())
    failure = tape.state(140.0).attempts[0].failure
    if is_overloaded:
        assert failure is None
    else:
        assert failure is not None and failure.why.startswith("node n1 did not start their ranks within 120")


@pytest.mark.parametrize("overload, lost_after", [((), 12.5), ((NodeOverloaded(5.0),), 20.5)])
def test_an_overloaded_node_is_lost_only_when_its_lease_is_over(overload: Any, lost_after: float) -> None:
    tape = training()
    for step in range(2, 20):
        tape.at(step / 2, *(MessageCame(node, Beat(step)) for node in (0, 1)))
    tape.at(10.0, *(MessageCame(1, message) for message in (*overload, Beat(20))))
    time = 10.0
    while DropLink(1) not in tape.at(time, MessageCame(0, Beat(int(2 * time))), Tick()):
        time += 0.5
        assert time < 60.0
    assert time == 10.0 + lost_after


def test_a_launcher_that_exits_before_all_joined_is_the_failure_with_its_message() -> None:
    actions = coordinator().at(1.0, LauncherEnded(1, ("srun: error", "no such host")))
    text = "the launcher ended with code 1: srun: error / no such host (before nodes 0 and 1 had joined)"
    assert [ending(actions).reason, actions[-1]] == [text, Finish(1)]


def test_a_launcher_that_ends_while_agents_live_ends_nothing() -> None:
    assert training().does(2.0, LauncherEnded(137, ("killed",))) == []


def test_every_beat_is_acknowledged_and_only_by_its_number() -> None:
    assert training().does(2.0, MessageCame(1, Beat(7))) == [Send(1, Ack(7, WALL + 2))]


def test_a_run_completes_when_every_rank_exited_0_and_every_node_is_clean() -> None:
    tape = training()
    for rank in range(4):
        assert tape.does(9.0, failed(rank, 9.0, code=0)) == []
    actions = all_gone(tape, 9.5)
    state = ending(actions)
    assert sent(actions) == FAREWELL
    assert [state.state, state.phase, state.exit_code, state.reason] == [
        State.COMPLETED,
        Phase.ENDED,
        0,
        "every rank exited 0",
    ]
    attempt = Attempt(
        0, "first start", ("n0", "n1"), WALL, WALL + 9.5, "COMPLETED", cause="first", ranks_at=WALL + 1
    )
    assert state.attempts == (attempt,)
    assert tape.does(9.6, AgentLeft(0, ""), AgentLeft(1, ""), LauncherEnded(0)) == [Finish(0)]


def test_ranks_that_ended_well_early_are_waited_with_without_limit() -> None:
    tape = training()
    tape.at(2.0, failed(0, 2.0, code=0), failed(1, 2.0, code=0), MessageCame(0, RanksGone(0)))
    for second in range(5, 2000, 5):
        assert sent(tape.at(float(second), MessageCame(0, Beat(second)), MessageCame(1, Beat(second))))


def test_the_state_is_saved_at_most_five_times_a_second_and_at_least_every_ten_seconds() -> None:
    machine = Coordinator(Orders("r", "r", 500, 1, 0, 1, ("t",), "/"), "h", 1)
    saves: list[float] = []

    def at(time: float, event: Any) -> None:
        saves.extend(time for action in machine.on(Now(time, time), event) if hasattr(action, "state"))

    at(0.0, Tick())
    at(0.0, EpochClaimed(0))
    for node in range(400):
        at(1.0 + node / 400, AgentJoined(node, hello(node)))
        at(1.0 + node / 400, MessageCame(node, Beat(0)))
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
        try:
            tape.machine.on(Now(1.2, 1.2), MessageCame(1, Beat(1)))
            tape.machine.on(Now(1.2, 1.2), MessageCame(1, RankExited(0, 2, 0, 0.0)))
        finally:
            sys.settrace(None)
        return count

    assert cost(1000) == cost(3)


def test_ranks_started_everywhere_is_training() -> None:
    tape = coordinator()
    join(tape, 1.0)
    tape.at(1.0, MessageCame(0, PortReserved(0, 29000)), MessageCame(0, RanksStarted(0)))
    assert tape.state(1.4).phase is Phase.STARTING
    tape.at(2.0, MessageCame(1, RanksStarted(0)))
    assert tape.state(2.2).phase is Phase.TRAINING
