"""The coordinator's laws of checked nodes, spares and successors, one short tape each."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from clusterrun.coordinator.actions import (
    EndLauncher,
    Finish,
    LaunchAgents,
    LookAtLauncher,
    Resubmit,
    SaveReport,
    Send,
)
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import (
    AgentJoined,
    AgentLeft,
    CancelAsked,
    EpochClaimed,
    LauncherEnded,
    LauncherReached,
    MemoryKilled,
    MessageCame,
    Overloaded,
    Resubmitted,
    Superseded,
)
from clusterrun.coordinator.lifecycle import Collaborators
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level, Preflight
from clusterrun.model.preflight_report import Grade
from clusterrun.model.record import Attempt
from clusterrun.model.states import Phase, State
from clusterrun.model.world import Meeting, World
from clusterrun.protocol.messages import (
    AskSidecar,
    Beat,
    EndSidecar,
    Farewell,
    NodeOverloaded,
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    ReservePort,
    SidecarEnded,
    SidecarSaid,
    SignalSeen,
    StartRanks,
    StopRanks,
)
from clusterrun.runtime.machine_events import SignalCame, Tick
from tests.coordinator.preflight_sessions import ILL, WELL, Simple
from tests.coordinator.tapes import MEETING, ORDERS, WALL, Tape, hello, join, sent

NAMES = ("n0", "n1", "n2", "n3")
WORDS = ("sbatch", "--exclude=x1,{excluded}", "script.sh")
LIMIT = 300.0


def examined(nodes: int = 2, spares: int = 1, claimed: Any = None, **preflight: Any) -> Tape:
    """Return a coordinator that waits for its agents at 0 s and will examine them."""
    check = Preflight(Level.FULL, **preflight)
    orders = replace(ORDERS, nodes=nodes, spares=spares, preflight=check)
    tape = Tape(
        Coordinator(orders, "login", 42, collaborators=Collaborators(Simple, names=NAMES[: nodes + spares]))
    )
    tape.at(0.0)
    tape.at(0.0, claimed or EpochClaimed(0))
    return tape


def answer(node: int, body: str = WELL, epoch: int = 0) -> MessageCame:
    return MessageCame(node, SidecarSaid(epoch, "examiner", 1, body))


def asked(*nodes: int, epoch: int = 0) -> list[Any]:
    arguments = [(n, AskSidecar(epoch, "examiner", 1, f"node {n}, are you well?")) for n in nodes]
    return [Send(link, message) for link, message in arguments]


def under_way(**orders: Any) -> Tape:
    tape = examined(**orders)
    join(tape, 1.0, nodes=3)
    return tape


def test_every_node_is_checked_after_all_joined_and_the_state_shows_it() -> None:
    tape = examined()
    assert join(tape, 1.0, nodes=3) == asked(0, 1, 2)
    state = tape.state(2.0)
    assert (state.phase, state.reason) == (Phase.PREFLIGHT, "3 nodes are still asked")


def test_fit_nodes_train_in_the_order_that_was_found_and_the_spare_is_let_alone() -> None:
    tape = under_way()
    out = tape.does(2.0, answer(0), answer(1), answer(2))
    assert sent(out) == [(2, EndSidecar(0, "examiner")), (0, ReservePort(0))]
    started = sent(tape.does(2.1, MessageCame(0, PortReserved(0, 29000))))
    world = World(("n0", "n1"), 2)
    assert started == [
        (place, StartRanks(0, world, place, MEETING, (("CHOSEN", "eth7"),))) for place in (0, 1)
    ]
    state = tape.state(2.2)
    assert (state.phase, state.reason) == (Phase.STARTING, "ranks are being started")
    tape.at(3.0, MessageCame(0, RanksStarted(0)), MessageCame(1, RanksStarted(0)))
    state = tape.state(4.0)
    assert (state.phase, state.spares, state.warnings) == (Phase.TRAINING, ("n2",), ())
    assert state.attempts[-1].nodes == ("n0", "n1")


def swapped() -> Tape:
    """Return a coordinator with node 0 unfit, and nodes 1 and 2 in places 0 and 1."""
    tape = under_way()
    tape.at(2.0, answer(0, ILL), answer(1), answer(2))
    return tape


def test_an_unfit_node_is_swapped_for_a_spare_and_rank_0_moves() -> None:
    tape = under_way()
    out = tape.does(2.0, answer(0, ILL), answer(1), answer(2))
    assert sent(out) == [(0, EndSidecar(0, "examiner")), (1, ReservePort(0))]
    assert tape.does(2.0, MessageCame(0, PortReserved(0, 29000))) == []
    world, meeting = World(("n1", "n2"), 2), Meeting("10.0.0.2", 29000)
    started = sent(tape.does(2.1, MessageCame(1, PortReserved(0, 29000))))
    assert started == [
        (1, StartRanks(0, world, 0, meeting, (("CHOSEN", "eth7"),))),
        (2, StartRanks(0, world, 1, meeting, (("CHOSEN", "eth7"),))),
    ]
    state = tape.state(3.0)
    assert (state.excluded, state.spares) == (("n0",), ())
    assert state.warnings == ("pre-flight left n0 out: ill",)


def test_the_report_is_saved_and_copied_if_it_has_a_finding() -> None:
    retained = []
    for body in (WELL, ILL):
        tape = under_way()
        out = tape.does(2.0, answer(0, body), answer(1), answer(2))
        retained += [(a.epoch, a.keep, a.report.verdict) for a in out if isinstance(a, SaveReport)]
    assert retained == [(0, False, Grade.PASS), (0, True, Grade.FAIL)]


def test_ranks_are_counted_by_place_and_a_run_of_swapped_nodes_completes() -> None:
    tape = swapped()
    tape.at(
        2.1,
        MessageCame(1, PortReserved(0, 29000)),
        MessageCame(1, RanksStarted(0)),
        MessageCame(2, RanksStarted(0)),
    )
    for rank in range(4):
        tape.at(3.0, MessageCame(1 + rank // 2, RankExited(0, rank, 0, WALL + 3.0)))
    out = tape.at(4.0, MessageCame(1, RanksGone(0)), MessageCame(2, RanksGone(0)))
    assert tape.saved and tape.saved.state is State.COMPLETED
    assert [message for _, message in sent(out)] == [Farewell()] * 3


@pytest.mark.parametrize("when", ["before the port", "while ranks start", "in training"])
def test_the_loss_of_a_spare_is_no_failure(when: str) -> None:
    tape = under_way()
    tape.at(2.0, answer(0), answer(1), answer(2))
    steps = {
        "before the port": [],
        "while ranks start": [MessageCame(0, PortReserved(0, 1))],
        "in training": [
            MessageCame(0, PortReserved(0, 1)),
            MessageCame(0, RanksStarted(0)),
            MessageCame(1, RanksStarted(0)),
        ],
    }
    tape.at(2.1, *steps[when])
    state = tape.state(10.0, AgentLeft(2, "reset"))
    assert state.state is State.RUNNING and state.warnings == ("the idle node n2 was lost: reset",)


def test_a_restart_keeps_the_world_and_is_not_ruled_out_by_a_lost_spare() -> None:
    check = Preflight(Level.FULL)
    orders = replace(ORDERS, spares=1, preflight=check, max_restarts=1)
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(Simple)))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    join(tape, 1.0, nodes=3)
    tape.at(2.0, answer(0, ILL), answer(1), answer(2), MessageCame(1, PortReserved(0, 1)))
    tape.at(2.0, MessageCame(1, RanksStarted(0)), MessageCame(2, RanksStarted(0)), AgentLeft(0, "reset"))
    tape.at(3.0, MessageCame(1, RankExited(0, 0, 3, WALL + 3.0)))
    assert sent(tape.does(3.4)) == [(1, StopRanks(0, 8.0)), (2, StopRanks(0, 8.0))]
    tape.at(4.0, MessageCame(1, RanksGone(0)), MessageCame(2, RanksGone(0)))
    requested = [(link, order.number) for link, order in sent(tape.does(4.1, EpochClaimed(1)))]
    assert requested == [(1, 1)]  # the node whose rank failed, and no other
    assert sent(tape.does(4.2, answer(1, epoch=1))) == [(1, ReservePort(1))]
    assert tape.state(5.0).attempts[-1].nodes == ("n1", "n2")


# --- nodes that do not join, or that leave ---


def test_the_last_half_gets_three_times_as_long_as_the_first_and_at_least_15_s() -> None:
    for joined, until in ((1.0, 15.0), (8.0, 24.0)):
        tape = examined()
        join(tape, joined, nodes=2)
        assert tape.does(until - 0.01) == []
        assert tape.does(until) == asked(0, 1)


@pytest.mark.parametrize("is_overloaded", [False, True])
def test_the_check_receives_the_absent_nodes_that_an_overload_excuses(is_overloaded: bool) -> None:
    checked: list[Any] = []

    def examine(orders: Any, nodes: Any, *rest: Any) -> Simple:
        checked.extend(nodes)
        return Simple(orders, nodes, *rest)

    orders = replace(ORDERS, nodes=3, preflight=Preflight(Level.FULL))
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(examine, names=NAMES[:3])))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    join(tape, 1.0, nodes=2)
    tape.at(1.5, *[Overloaded(1.5)] * is_overloaded)
    tape.at(2.0, LauncherEnded(1, ("srun: error: n2: task 2: Exited with exit code 1",), whole=False))
    tape.at(4.0)
    excused = [(node.name, node.is_excused) for node in checked]
    assert excused == [("n0", False), ("n1", False), ("n2", is_overloaded)]


def test_a_step_that_is_killed_for_its_memory_during_the_check_blames_no_node() -> None:
    tape = examined()
    join(tape, 1.0, nodes=3)
    line = "slurmstepd-n1: error: StepId=3.0 exceeded memory limit (20 > 10), being killed"
    tape.at(2.0, MemoryKilled("n1", line), AgentLeft(0, "reset"), AgentLeft(1, "reset"))
    state = tape.state(2.5)
    assert (state.state, state.excluded) == (State.OUT_OF_MEMORY, ())


def test_absent_nodes_are_named_with_the_launchers_message() -> None:
    tape = examined()
    join(tape, 1.0, nodes=2)
    output = ("no such file", "srun: error: n2: task 2: Exited with exit code 1", "something else")
    assert tape.does(2.0, LauncherEnded(1, output, whole=False)) == []
    tape.at(4.0)
    tape.at(5.0, answer(0), answer(1))
    state = tape.state(6.0)
    assert state.excluded == ("n2",)
    assert state.warnings == (
        "pre-flight left n2 out: its agent did not join within 4 s"
        " (no such file / srun: error: n2: task 2: Exited with exit code 1)",
    )


LAUNCH = ("srun", "--nodes=3", "python")
UNREACHED = "srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure"


def launched(nodes: int = 2) -> Tape:
    """Return a coordinator with two of three nodes joined, started by one program."""
    orders = replace(ORDERS, spares=1, preflight=Preflight(Level.FULL), launch=LAUNCH)
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(Simple, names=NAMES[:3])))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    join(tape, 1.0, nodes=nodes)
    return tape


def rejoin(tape: Tape, time: float) -> list[Any]:
    """Let the agents of a second launch join over links 10 and 11."""
    out: list[Any] = []
    for node in (0, 1):
        out += tape.does(time, AgentJoined(10 + node, hello(node, pid=2)), MessageCame(10 + node, Beat(0)))
    return [m for _, m in sent(out) if isinstance(m, AskSidecar)]


def test_a_launcher_that_cannot_reach_a_node_is_started_again_without_it() -> None:
    tape = launched()
    tape.at(12.0, AgentLeft(0, "closed"), AgentLeft(1, "closed"))
    assert tape.does(12.1, LauncherEnded(233, (UNREACHED, "srun: Job step aborted"))) == [
        LaunchAgents(("n2",))
    ]
    assert len(rejoin(tape, 13.0)) == 2
    tape.at(14.0, *(MessageCame(10 + n, SidecarSaid(0, "examiner", 1, WELL)) for n in (0, 1)))
    state = tape.state(15.0)
    assert state.attempts[-1].nodes == ("n0", "n1")
    assert state.warnings == (f"pre-flight left n2 out: its agent did not join within 12 s ({UNREACHED})",)


def test_a_launcher_that_may_still_try_to_reach_somebody_is_ended_before_it_ends_all() -> None:
    tape = launched()
    beats = [MessageCame(node, Beat(1)) for node in (0, 1)]
    tape.at(10.0, *beats)
    assert tape.does(15.0) == [Send(0, Farewell()), Send(1, Farewell()), EndLauncher()]
    assert tape.does(16.0, AgentLeft(0, "bye"), AgentLeft(1, "bye"), LauncherEnded(143)) == [
        LaunchAgents(("n2",))
    ]
    assert len(rejoin(tape, 17.0)) == 2


def launching(nodes: int = 4) -> Tape:
    """Launch by srun, before any node joins. srun holds its input back until each node is connected."""
    check = Preflight(Level.FULL)
    orders = replace(ORDERS, nodes=nodes - 1, spares=1, preflight=check, launch=("srun", "agent", "/run"))
    names = tuple(f"n{node}" for node in range(nodes))
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(Simple, names=names)))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    return tape


@pytest.mark.parametrize("absent", [(2,), (3,), (2, 3)])
def test_a_node_without_a_connection_to_the_launcher_is_named_if_nobody_joins(absent) -> None:
    tape = launching()
    assert tape.does(10.0) == [LookAtLauncher(NAMES)]
    linked = LauncherReached(tuple(name for node, name in enumerate(NAMES) if node not in absent))
    tape.at(10.5, linked)
    assert LookAtLauncher(NAMES) in tape.does(15.0)
    assert EndLauncher() not in tape.does(29.0, linked)
    assert EndLauncher() in tape.does(35.0, linked)
    without = LaunchAgents(tuple(NAMES[node] for node in absent))
    assert tape.does(36.0, LauncherEnded(143)) == [without]
    remote = [node for node in range(4) if node not in absent]
    for place, node in enumerate(remote):
        tape.at(37.0, AgentJoined(20 + place, hello(node)), MessageCame(20 + place, Beat(0)))
    state = tape.state(38.0)
    assert state.phase is Phase.PREFLIGHT
    tape.at(
        39.0, *(MessageCame(20 + place, SidecarSaid(0, "examiner", 1, WELL)) for place in range(len(remote)))
    )
    notice = "; ".join((*tape.state(40.0).warnings, tape.state(40.0).reason))
    assert f"it opened no connection to n0 within 35 s, as the {len(remote)} other nodes did" in notice


@pytest.mark.parametrize("linked", [(), ("n0",), NAMES])
def test_the_coordinator_waits_if_most_nodes_have_no_connection_yet_or_all_have_one(linked) -> None:
    tape = launching()
    for time in (10.5, 40.5, 80.5, 119.0):
        assert EndLauncher() not in tape.does(time, LauncherReached(linked))


def test_all_other_nodes_are_dropped_if_only_the_launchers_node_is_connected() -> None:
    tape = launching()
    lonely = LauncherReached(NAMES[:1], settled=True)
    assert EndLauncher() not in tape.does(59.0, lonely)
    assert EndLauncher() in tape.does(60.5, lonely)
    assert tape.does(61.0, LauncherEnded(143)) == [LaunchAgents(NAMES[1:])]
    tape.at(62.0, AgentJoined(20, hello(0)), MessageCame(20, Beat(0)))
    state = tape.state(63.0)
    assert state.phase is Phase.PREFLIGHT
    tape.at(64.0, MessageCame(20, SidecarSaid(0, "examiner", 1, WELL)))
    notice = "; ".join((*tape.state(65.0).warnings, tape.state(65.0).reason))
    assert "it opened no connection to n0 within 60 s, and no other node did" in notice


def test_the_coordinator_waits_for_the_second_of_two_nodes() -> None:
    tape = launching(2)
    for time in (60.5, 100.0):
        assert EndLauncher() not in tape.does(time, LauncherReached(NAMES[:1], settled=True))


def test_the_launchers_connections_are_not_read_after_a_node_joined() -> None:
    tape = launching()
    tape.at(1.0, AgentJoined(0, hello(0)), MessageCame(0, Beat(0)))
    assert tape.does(10.0) == []
    assert EndLauncher() not in tape.does(11.0, LauncherReached(("n0", "n1", "n2")))


def test_a_launcher_that_reported_an_agents_exit_reached_its_node_and_may_continue() -> None:
    tape = launched()
    output = ("srun: error: n[2-3]: tasks 2-3: Exited with exit code 127",)
    tape.at(2.0, LauncherEnded(127, output, whole=False))
    assert tape.does(4.0) == asked(0, 1)


def test_a_launcher_that_does_not_end_is_not_waited_for_without_end() -> None:
    tape = launched()
    tape.at(10.0, *(MessageCame(node, Beat(1)) for node in (0, 1)))
    tape.at(15.0)
    state = tape.state(35.0)
    assert (state.state, state.reason) == (State.FAILED, "the launcher did not end within 20 s")


def test_a_launcher_that_fails_for_another_reason_ends_the_run_as_it_always_did() -> None:
    tape = launched()
    state = tape.state(2.0, LauncherEnded(1, ("srun: error: invalid credential",)))
    assert state.state is State.FAILED and "invalid credential" in state.reason


def test_agents_are_launched_again_only_a_few_times() -> None:
    names = tuple(f"n{number}" for number in range(12))
    orders = replace(ORDERS, nodes=12, preflight=Preflight(Level.FULL), launch=LAUNCH)
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(Simple, names=names)))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    out: list[Any] = []
    for number in range(7):
        output = (UNREACHED.replace("n2", f"n{number}"),)
        out += tape.does(1.0 + number, LauncherEnded(233, output))
    again = [a.without for a in out if isinstance(a, LaunchAgents)]
    assert again == [names[:count] for count in range(1, 6)]
    assert tape.saved and tape.saved.state is State.NODE_FAIL


def test_less_than_half_of_them_are_waited_for_to_the_end() -> None:
    tape = examined(nodes=3, spares=1)
    join(tape, 1.0, nodes=1)
    assert tape.does(16.0) == []
    assert tape.does(121.0) == asked(0)


def test_the_run_ends_as_usual_if_no_agent_joins() -> None:
    tape = examined()
    state = tape.state(121.0)
    assert (state.state, state.exit_code) == (State.FAILED, 1) and "did not join" in state.reason


def test_a_node_that_joined_and_was_lost_is_named_absent() -> None:
    tape = examined()
    join(tape, 1.0, nodes=2)
    tape.at(2.0, AgentLeft(1, "reset"))
    assert tape.does(3.0, AgentJoined(2, hello(2)), MessageCame(2, Beat(0)))[1:] == asked(0, 2)
    tape.at(4.0, answer(0), answer(2))
    assert tape.state(5.0).warnings == (
        "pre-flight left n1 out: its agent was lost before the others had joined: reset",
    )


def test_an_agent_that_joins_after_the_start_is_sent_away() -> None:
    tape = examined()
    join(tape, 1.0, nodes=2)
    tape.at(15.0)
    assert tape.does(16.0, AgentJoined(2, hello(2))) == [Send(2, Farewell())]


@pytest.mark.parametrize(
    "event, why",
    [
        (AgentLeft(0, "reset"), "n0 (node 0) was lost: reset"),
        (MessageCame(0, SidecarEnded(0, "examiner", "was killed")), "was killed"),
    ],
)
def test_a_node_that_dies_while_it_is_examined_is_named_and_swapped(event: Any, why: str) -> None:
    tape = under_way()
    tape.at(2.0, answer(1), answer(2))
    assert (1, ReservePort(0)) in sent(tape.does(3.0, event))
    assert tape.state(4.0).warnings == (f"pre-flight left n0 out: {why}",)


def test_silence_is_found_while_nodes_are_examined_too() -> None:
    tape = under_way()
    for second in range(1, 25):
        tape.at(second, *(MessageCame(node, Beat(second)) for node in (0, 1)), Tick())
    tape.at(25.0, answer(0), answer(1))
    assert tape.state(26.0).warnings == (
        "pre-flight left n2 out: n2 (node 2) was lost: no heartbeat for 20 s",
    )


@pytest.mark.parametrize("seconds", [13, 16, 19])
def test_a_suspension_shorter_than_the_lease_during_a_check_loses_no_node(seconds: int) -> None:
    tape = under_way()
    for second in range(2, 1 + seconds):
        tape.at(second, *(MessageCame(node, Beat(second)) for node in (0, 2)), Tick())
    tape.at(1.0 + seconds, MessageCame(1, Beat(1)), answer(0), answer(1), answer(2))
    state = tape.state(2.0 + seconds)
    assert (state.warnings, state.excluded, state.attempts[-1].nodes) == ((), (), ("n0", "n1"))


def test_a_node_of_the_world_that_is_lost_before_ranks_start_ends_the_run_by_name() -> None:
    tape = swapped()
    state = tape.state(2.1, AgentLeft(2, "reset"))
    assert (state.state, state.reason) == (State.NODE_FAIL, "n2 (node 2) was lost: reset")


OVERLOADED = MessageCame(2, NodeOverloaded(1.5))


def overloaded(**orders: Any) -> Tape:
    """Return a coordinator after node 2's report of an overload.

    The run needs node 2, because node 0 is unfit.
    """
    tape = under_way(**orders)
    tape.at(1.5, OVERLOADED)
    return tape


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_node_that_is_lost_before_ranks_start_while_it_is_overloaded_costs_no_restart(
    is_checked: bool, requeue: bool
) -> None:
    tape = overloaded()
    if is_checked:
        tape.at(2.0, answer(0, ILL), answer(1), AgentLeft(2, "reset"))
    else:
        tape.at(2.0, answer(0, ILL), answer(1), answer(2))
        tape.at(2.1, AgentLeft(2, "reset"))
    state = tape.state(2.2)
    assert state.phase is Phase.RESTARTING
    assert state.reason == "once more, after an overload: n2 (node 2) was lost: reset"
    assert state.excluded == ("n0",)
    tape.at(2.3, EpochClaimed(1))
    assert tape.state(4.0).attempts[-1].cause == "overload"


def test_a_check_is_repeated_at_most_three_times_after_overloads() -> None:
    before = tuple(Attempt(n, "", (), WALL, WALL, "NODE_FAIL", cause="overload") for n in range(3))
    tape = overloaded(claimed=EpochClaimed(3, before, True))
    state = tape.state(2.0, answer(0, ILL, 3), answer(1, WELL, 3), AgentLeft(2, "reset"))
    assert (state.state, len(state.attempts)) == (State.FAILED, 4)


def test_a_check_without_a_run_is_not_repeated_after_an_overload() -> None:
    tape = overloaded(alone=True)
    state = tape.state(2.0, answer(0), answer(1, ILL), AgentLeft(2, "reset"))
    assert (state.state, len(state.attempts)) == (State.FAILED, 1)


def test_a_node_that_is_lost_while_it_trains_and_is_overloaded_is_charged() -> None:
    tape = swapped()
    tape.at(2.1, MessageCame(1, PortReserved(0, 29000)))
    tape.at(2.2, MessageCame(1, RanksStarted(0)), MessageCame(2, RanksStarted(0)), OVERLOADED)
    tape.at(3.0, AgentLeft(2, "reset"))
    tape.at(60.0, MessageCame(1, RanksGone(0)), Tick())
    assert tape.state(61.0).state is State.NODE_FAIL


# --- too few ---


def unfit(**orders: Any) -> tuple[Tape, list[Any]]:
    tape = under_way(**orders)
    return tape, tape.at(2.0, answer(0, ILL), answer(1), answer(2, "worse"))


def test_too_few_fit_nodes_end_the_run_with_3_and_the_reasons() -> None:
    tape, out = unfit()
    state = tape.saved
    assert state is not None
    assert (state.state, state.exit_code, state.excluded) == (State.FAILED, 3, ("n0", "n2"))
    assert state.reason == "pre-flight: n0 is unfit: ill; n2 is unfit: worse; 1 fit of 2 asked"
    assert [message for _, message in sent(out)] == [Farewell()] * 3
    ended = [AgentLeft(link, "bye") for link in range(3)]
    assert tape.does(3.0, *ended, LauncherEnded(0)) == [Finish(3)]


def test_another_job_is_queued_without_the_unfit_where_that_was_wished() -> None:
    tape, out = unfit(resubmit=WORDS)
    assert [a for a in out if isinstance(a, Resubmit)] == [
        Resubmit(("sbatch", "--exclude=x1,n[0,2]", "script.sh"), ("n0", "n2"))
    ]
    assert not [message for _, message in sent(out) if message == Farewell()]
    state = tape.state(3.0, Resubmitted("78"))
    assert (state.state, state.phase, state.ended_at) == (State.PENDING, Phase.QUEUED, None)
    assert state.reason == "resubmitted as job 78 without n[0,2]"
    assert state.attempts[-1].outcome == "PENDING"
    ended = [AgentLeft(link, "bye") for link in range(3)]
    assert tape.does(3.1, *ended, LauncherEnded(0)) == [Finish(3)]


def test_the_reason_names_a_job_that_could_not_be_queued() -> None:
    tape, _ = unfit(resubmit=WORDS)
    state = tape.state(3.0, Resubmitted("", "the program exited with code 1: invalid partition"))
    assert (state.state, state.exit_code) == (State.FAILED, 3)
    text = "it could not be queued anew: the program exited with code 1: invalid partition"
    assert state.reason.endswith(f"; {text}")


def test_a_scheduler_that_never_answers_is_not_waited_for_without_end() -> None:
    tape, _ = unfit(resubmit=WORDS)
    for second in range(3, 122):
        tape.at(float(second), *(MessageCame(node, Beat(second)) for node in range(3)))
    state = tape.state(123.0)
    assert state.state is State.FAILED and "nothing was heard of the new job within 120 s" in state.reason


def test_a_run_is_queued_again_at_most_three_times_and_excludes_all_unfit_nodes() -> None:
    for before, again in ((2, True), (3, False)):
        attempts = tuple(Attempt(n, "", (), WALL, WALL, "PENDING") for n in range(before))
        claimed = EpochClaimed(before, attempts, True, ("n9",))
        tape = examined(claimed=claimed, resubmit=WORDS)
        join(tape, 1.0, nodes=3)
        answers = [answer(node, ILL, epoch=before) for node in range(3)]
        out = tape.at(2.0, *answers)
        created = [a.excluded for a in out if isinstance(a, Resubmit)]
        assert created == ([("n9", "n0", "n1", "n2")] if again else [])


def test_a_successor_job_starts_at_once_and_keeps_the_exclusions() -> None:
    claimed = EpochClaimed(1, (Attempt(0, "", (), WALL, WALL, "PENDING"),), True, ("n9",))
    tape = examined(claimed=claimed)
    assert join(tape, 1.0, nodes=3) == asked(0, 1, 2, epoch=1)
    assert tape.state(2.0).excluded == ("n9",)


# --- alone; requests ---


@pytest.mark.parametrize("body, end", [(WELL, (State.COMPLETED, 0)), (ILL, (State.FAILED, 3))])
def test_a_check_alone_ends_with_its_verdict_and_starts_nothing(body: str, end: tuple[State, int]) -> None:
    tape = under_way(alone=True)
    out = tape.at(2.0, answer(0, body), answer(1), answer(2))
    assert tape.saved and (tape.saved.state, tape.saved.exit_code) == end
    assert [message for _, message in sent(out)] == [Farewell()] * 3


@pytest.mark.parametrize(
    "event", [CancelAsked(), SignalCame(signal.SIGTERM), MessageCame(1, SignalSeen(signal.SIGTERM))]
)
def test_a_run_can_be_cancelled_while_its_nodes_are_examined_or_its_successor_is_queued(event: Any) -> None:
    for tape in (under_way(), unfit(resubmit=WORDS)[0]):
        out = tape.at(3.0, event)
        assert tape.saved and tape.saved.state is State.CANCELLED
        assert [message for _, message in sent(out)] == [Farewell()] * 3
        late = tape.at(4.0, Resubmitted("78"), answer(0))
        assert not sent(late) and tape.saved.state is State.CANCELLED


def test_the_time_limit_counts_while_nodes_are_examined() -> None:
    orders = replace(ORDERS, preflight=Preflight(Level.FULL), time_limit=5.0)
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(Simple)))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    join(tape, 1.0)
    assert tape.state(5.0).state is State.TIMEOUT


def test_another_coordinator_ends_a_check_and_nothing_is_written() -> None:
    tape = under_way()
    out = tape.does(2.0, Superseded(1))
    assert [message for _, message in sent(out)] == [Farewell()] * 3
    assert not [a for a in tape.does(3.0, answer(0), answer(1), answer(2)) if isinstance(a, SaveReport)]


def test_answers_of_an_older_epoch_and_of_nobody_change_nothing() -> None:
    tape = examined(claimed=EpochClaimed(4))
    join(tape, 1.0, nodes=3)
    strange = [answer(0, ILL, epoch=3), MessageCame(99, SidecarSaid(4, "examiner", 1, ILL))]
    strange += [
        MessageCame(0, SidecarSaid(4, "observer", 1, ILL)),
        MessageCame(0, SidecarSaid(4, "stranger", 1, ILL)),
    ]
    assert tape.does(2.0, *strange) == []
    assert (0, ReservePort(4)) in sent(tape.does(3.0, *(answer(node, epoch=4) for node in range(3))))


class Endless(Simple):
    """A check with a bug: no outcome ever."""

    def _look(self) -> None:
        self.progress = "thinking"

    def wakes_at(self) -> float | None:
        return None


def test_a_check_that_never_ends_is_ended() -> None:
    orders = replace(ORDERS, preflight=Preflight(Level.FULL))
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(Endless)))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    join(tape, 1.0)
    for second in range(2, 182):
        tape.at(float(second), *(MessageCame(node, Beat(second)) for node in (0, 1)))
    state = tape.state(182.0)
    assert (state.state, state.reason) == (State.FAILED, "pre-flight: it did not end within 180 s")


def test_spares_idle_and_the_first_nodes_train_without_a_pre_flight() -> None:
    tape = Tape(Coordinator(replace(ORDERS, spares=1), "login", 42))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    assert join(tape, 1.0, nodes=3) == [Send(0, ReservePort(0))]
    assert tape.state(2.0).spares == ("n2",)
    assert EndLauncher() not in tape.does(3.0, AgentLeft(2, "reset"))
