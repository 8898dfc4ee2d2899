"""From one attempt to the next: budgets, pauses, places, agents that are launched once more; tapes only."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.coordinator import restart_policy
from clusterrun.coordinator.actions import ClaimEpoch, EndLauncher, LaunchAgents, Send
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import (
    AgentJoined,
    AgentLeft,
    CancelAsked,
    EpochClaimed,
    LauncherEnded,
    MessageCame,
    Overloaded,
)
from clusterrun.coordinator.lifecycle import Collaborators
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.record import Attempt, Failure
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import (
    Ack,
    Beat,
    Farewell,
    PortReserved,
    RanksGone,
    RanksStarted,
    ReservePort,
    StartRanks,
)
from tests.coordinator.tapes import ORDERS, WALL, Tape, all_gone, failed, hello, sent, train, training


def attempts(*message: tuple[str, int]) -> tuple[Attempt, ...]:
    """Return attempts by cause and the highest step that they reported."""
    return tuple(Attempt(n, "", (), 0.0, cause=cause, step=step) for n, (cause, step) in enumerate(message))


@pytest.mark.parametrize(
    ("message", "used"),
    [
        ([("first", -1)], 0),
        ([("first", -1), ("failure", -1), ("node", -1), ("hang", -1), ("coordinator", -1)], 4),
        ([("first", 5), ("failure", 5), ("failure", 3)], 2),
        ([("first", 5), ("failure", 9)], 0),
        ([("first", 5), ("failure", 9), ("failure", 9)], 1),
        ([("first", -1), ("port", -1), ("preemption", -1), ("time-limit", -1), ("requeue", -1)], 0),
    ],
)
def test_restarts_count_since_an_attempt_got_further_than_all_before_it(
    message: list[tuple[str, int]], used: int
) -> None:
    assert restart_policy.restarts_used(attempts(*message)) == used


def test_a_checkpoint_is_progress_too() -> None:
    first, second = attempts(("first", 5), ("failure", 5))
    assert restart_policy.restarts_used((first, replace(second, checkpoint=4))) == 0


def test_pauses_double_from_two_seconds_to_a_minute_and_the_first_restart_has_none() -> None:
    assert [restart_policy.pause(used) for used in (*range(9), 5000)] == [0, 2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ([("first", 3), ("failure", 3), ("failure", 3)], ""),
        ([("first", 3), ("failure", 3), ("failure", 3), ("failure", 3)], "each ended at step 3"),
        ([("first", 3), ("failure", 3), ("failure", 1), ("hang", 2)], "none got beyond step 3"),
        ([("first", 3), ("failure", 3), ("preemption", 3), ("failure", 3)], ""),
        ([("first", 3), ("failure", 3), ("failure", 4), ("failure", 4)], ""),
        ([("first", -1), ("failure", -1), ("failure", -1), ("failure", -1)], ""),
    ],
)
def test_failures_in_a_row_that_got_no_further_are_in_vain_where_progress_is_reported(
    message: list[tuple[str, int]], arguments: str
) -> None:
    output = restart_policy.no_progress_reason(attempts(*message), 3)
    assert (arguments in output) if arguments else (output == "")
    assert restart_policy.no_progress_reason(attempts(*message), 0) == ""


def crash(tape: Tape, time: float, epoch: int) -> list[Any]:
    """Let rank 3 of ``epoch`` fail. Everything of the epoch is gone at ``time`` + 1 s."""
    tape.at(time, replace(failed(3, time), message=replace(failed(3, time).message, epoch=epoch)))
    tape.at(time + 0.3)
    return all_gone(tape, time + 1.0, epoch)


def test_a_script_that_always_crashes_at_step_3_ends_with_the_reason() -> None:
    tape = training(max_restarts=9, survival=Survival(no_progress=2))
    tape.reported = (3, -1)
    time = 5.0
    for epoch in range(2):
        crash(tape, time, epoch)
        claims = [] if epoch == 0 else tape.at(time + 3.1)
        assert (ClaimEpoch(1) in claims) == (epoch == 1)
        tape.at(time + 3.2, EpochClaimed(epoch + 1))
        train(tape, time + 3.3, epoch + 1)
        time += 10.0
    state = next(a.state for a in reversed(crash(tape, time, 2)) if hasattr(a, "state"))
    text = "no progress over 2 attempts: each ended at step 3, rank 3 on n1 exited with code 3"
    assert (state.state, state.reason, state.exit_code) == (State.FAILED, text, 3)
    assert [(a.cause, a.step) for a in state.attempts] == [("first", 3), ("failure", 3), ("failure", 3)]


def test_the_second_consecutive_restart_waits_and_shows_until_when() -> None:
    tape = training(max_restarts=3)
    assert ClaimEpoch(0) in crash(tape, 5.0, 0)
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, 1)
    assert ClaimEpoch(1) not in crash(tape, 10.0, 1)
    state = tape.state(12.0)
    assert (state.phase, state.state) == (Phase.RESTARTING, State.RUNNING)
    assert state.reason == "restart 2 of 3: rank 3 on n1 exited with code 3; not before 00:16:53 UTC"
    assert ClaimEpoch(1) in tape.at(13.0)


def allocated(nodes: int, **changes: Any) -> Tape:
    """Return a coordinator of more nodes than the two that train since 1 s. All nodes are present."""
    orders = replace(ORDERS, spares=nodes - 2, launch=("srun",), **changes)
    names = tuple(f"n{node}" for node in range(nodes))
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(names=names, job_id="77")))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    for node in range(nodes):
        tape.at(1.0, AgentJoined(node, hello(node)), MessageCame(node, Beat(0)))
    train(tape, 1.0)
    return tape


def beat(tape: Tape, first: int, last: int, *nodes: int) -> None:
    """Let these nodes send a heartbeat once a second."""
    for second in range(first, last + 1):
        tape.at(float(second), *(MessageCame(node, Beat(second)) for node in nodes))


def lose(tape: Tape, node: int, *others: int) -> None:
    """Lose ``node``: its last heartbeat is at 4 s, its lease ends at 27 s; ranks on ``others`` end at 6 s."""
    tape.at(4.0, MessageCame(node, Beat(4)))
    tape.at(5.0, AgentLeft(node, "connection reset"))
    tape.at(5.3)
    tape.at(6.0, *(MessageCame(other, RanksGone(0)) for other in others))
    beat(tape, 7, 26, *others, *([2] if 2 not in others and node != 2 else []))


def test_a_spare_replaces_a_lost_node_and_no_other_node_moves() -> None:
    tape = allocated(3, max_restarts=1)
    lose(tape, 0, 1)
    assert ClaimEpoch(0) in tape.at(27.0)
    assert sent(tape.does(27.1, EpochClaimed(1))) == [(2, ReservePort(1))]
    started = sent(tape.does(27.2, MessageCame(2, PortReserved(1, 1))))
    assert [
        (link, order.world.nodes, order.node) for link, order in started if isinstance(order, StartRanks)
    ] == [(2, ("n2", "n1"), 0), (1, ("n2", "n1"), 1)]
    state = tape.state(28.0)
    assert [(a.cause, a.job_id, a.nodes) for a in state.attempts] == [
        ("first", "77", ("n0", "n1")),
        ("node", "77", ("n2", "n1")),
    ]


def test_nothing_starts_before_the_lease_of_a_lost_node_is_out() -> None:
    tape = allocated(3, max_restarts=1)
    lose(tape, 0, 1)
    assert tape.does(26.9) == []
    assert ClaimEpoch(0) in tape.does(27.0)


def back(**changes: Any) -> Tape:
    """Return a coordinator that lost node 1 of two and launches agents again at 27.1 s."""
    tape = allocated(2, max_restarts=1, **changes)
    lose(tape, 1, 0)
    tape.at(27.0)
    assert tape.does(27.1, EpochClaimed(1)) == [LaunchAgents(("n0",))]
    return tape


def test_missing_agents_are_launched_beside_the_living_ones() -> None:
    tape = back()
    assert tape.does(28.0, MessageCame(0, Beat(28))) == [Send(0, Ack(28, WALL + 28.0))]
    tape.at(29.0, AgentJoined(11, hello(1, pid=2)))
    assert sent(tape.does(29.0, MessageCame(11, Beat(0)))) == [(11, Ack(0, WALL + 29.0)), (0, ReservePort(1))]
    started = sent(tape.does(29.1, MessageCame(0, PortReserved(1, 5))))
    assert [(link, order.node) for link, order in started if isinstance(order, StartRanks)] == [
        (0, 0),
        (11, 1),
    ]


OUT_OF_REACH = (
    "srun: error: Task launch for StepId=77.0 failed on node n1: Communication connection failure",
    "slurmstepd-n0: error: *** STEP 77.0 ON n0 CANCELLED AT 2026-11-27T09:39:51 ***",
    "srun: error: n0: task 0: Killed",
)


@pytest.mark.parametrize("requeue", ["", "requeue"])
def test_a_first_launch_that_does_not_reach_a_node_names_that_node(requeue: str) -> None:
    survival = Survival(requeue=requeue, resubmit=("sbatch",))
    orders = replace(ORDERS, launch=("srun",), survival=survival)
    names = ("n0", "n1")
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(names=names, job_id="77")))
    tape.at(0.0)
    tape.at(0.1, EpochClaimed(0))
    tape.at(12.0, LauncherEnded(1, OUT_OF_REACH))
    state = tape.state(12.1)
    failure = state.attempts[0].failure
    assert failure is not None
    assert (failure.node, state.excluded) == ("n1", ("n1",) if requeue else ())


def test_a_node_that_slurm_takes_out_of_the_job_costs_no_restart_in_it() -> None:
    tape = allocated(2, max_restarts=1, survival=Survival(requeue="requeue", resubmit=("sbatch",)))
    tape.at(4.0, LauncherEnded(1, ("srun: error: Node failure on n1",), whole=False))
    lose(tape, 1, 0)
    assert ClaimEpoch(0) not in tape.at(27.0)
    state = tape.state(27.1)
    assert (state.state, state.excluded, len(state.attempts)) == (State.PENDING, ("n1",), 1)


BUSY = "srun: error: Unable to create step for job 77: Requested nodes are busy"
"""As Slurm 20.11 to 26.05 say it where another step holds what this one takes."""


def test_all_agents_are_launched_again_if_a_living_step_holds_all_resources() -> None:
    tape = back()
    assert sent(tape.does(29.0, LauncherEnded(1, (BUSY,), others=True))) == [(0, Farewell())]
    assert tape.does(29.5, AgentLeft(0, "closed")) == []
    assert tape.does(30.0, LauncherEnded(0)) == [LaunchAgents(())]
    tape.at(31.0, AgentJoined(10, hello(0, pid=2)), MessageCame(10, Beat(0)))
    tape.at(31.0, AgentJoined(11, hello(1, pid=2)))
    assert sent(tape.does(31.0, MessageCame(11, Beat(0))))[1:] == [(10, ReservePort(1))]
    state = tape.state(32.0)
    assert (state.state, state.excluded) == (State.RUNNING, ())


def test_no_node_is_named_where_no_step_starts_after_all_have_ended_either() -> None:
    tape = back(survival=Survival(requeue="requeue", resubmit=("sbatch",)))
    tape.at(29.0, LauncherEnded(1, (BUSY,), others=True))
    tape.at(30.0, LauncherEnded(0))
    tape.at(130.0, LauncherEnded(1, (BUSY,)))
    state = tape.state(131.0)
    failure = state.attempts[1].failure
    assert failure is not None
    text = f"the launcher ended with code 1: {BUSY} (before nodes n0 and n1 had joined)"
    assert (failure.node, failure.why, state.excluded) == ("", text, ())


def test_a_restart_without_a_node_never_sends_all_agents_away() -> None:
    tape = back()
    output = ("srun: error: Unable to create step: Requested node configuration is not available",)
    late = tape.does(28.0, LauncherEnded(1, output, others=True))
    state = tape.state(28.0)
    assert state.attempts[1].failure is not None
    assert state.attempts[1].failure.why.endswith(output[0])
    assert [message for _, message in sent(late)] == [Farewell()]  # the run is over: nothing is left to give
    assert EndLauncher() in late
    assert (state.state, state.attempts[1].failure.node) == (State.NODE_FAIL, "n1")


def test_an_agent_that_is_lost_while_others_are_waited_for_is_missed() -> None:
    tape = back()
    tape.at(28.0, AgentLeft(0, "reset"))
    tape.at(29.0, AgentJoined(11, hello(1, pid=2)), MessageCame(11, Beat(0)))
    assert ReservePort(1) not in [message for _, message in sent(tape.does(60.0))]


def test_the_exit_of_a_launcher_beside_an_older_one_ends_no_attempt() -> None:
    tape = back()
    tape.at(
        29.0, AgentJoined(11, hello(1, pid=2)), MessageCame(11, Beat(0)), MessageCame(0, PortReserved(1, 5))
    )
    tape.at(29.2, MessageCame(0, RanksStarted(1)), MessageCame(11, RanksStarted(1)))
    tape.at(30.0, LauncherEnded(0, (), others=True))
    for second in range(30, 60):
        tape.at(float(second), MessageCame(0, Beat(second)), MessageCame(11, Beat(second)))
    state = tape.state(60.0)
    assert (state.state, state.phase, state.epoch) == (State.RUNNING, Phase.TRAINING, 1)


def test_an_unreachable_controller_costs_no_living_agent() -> None:
    tape = back()
    text = "srun: error: Unable to confirm allocation for job 3: Unable to contact slurm controller"
    tape.at(27.5, LauncherEnded(1, (text,), others=True))
    assert tape.does(28.0, MessageCame(0, Beat(28))) == [Send(0, Ack(28, WALL + 28.0))]
    assert tape.does(28.5) == [LaunchAgents(("n0",))]


def test_all_agents_are_launched_again_if_the_launcher_is_lost() -> None:
    tape = allocated(2, max_restarts=1)
    lose(tape, 1, 0)
    tape.at(27.0)
    tape.at(27.0, LauncherEnded(137))
    assert tape.does(27.1, EpochClaimed(1)) == [Send(0, Farewell()), LaunchAgents(())]


def test_a_silent_node_is_left_out_of_the_next_launch_if_enough_remain() -> None:
    tape = allocated(4, max_restarts=2)
    for node in (1, 2, 3):
        tape.at(4.0, MessageCame(node, Beat(4)))
    tape.at(5.0, AgentLeft(2, "reset"), AgentLeft(3, "reset"), AgentLeft(1, "reset"))
    tape.at(5.3)
    tape.at(6.0, MessageCame(0, RanksGone(0)))
    beat(tape, 7, 26, 0)
    tape.at(27.0)
    output = ("srun: error: n3: task 3: Exited with exit code 137",)
    tape.at(27.0, LauncherEnded(137, output, whole=False))
    assert tape.does(27.1, EpochClaimed(1)) == [LaunchAgents(("n0", "n1", "n2"))]
    assert tape.state(29.0).excluded == ("n1", "n2")


def test_a_node_that_slurm_took_out_of_the_job_is_named_and_left_out_also_under_overload() -> None:
    survival = Survival(requeue="requeue", resubmit=("sbatch",))
    for elsewhere in (Survival(), survival):
        tape = allocated(2, max_restarts=3, survival=elsewhere)
        lose(tape, 1, 0)
        tape.at(27.0)
        tape.at(27.1, EpochClaimed(1))
        output = ("srun: error: Unable to create step: Requested node configuration is not available",) * 2
        tape.at(28.9, Overloaded(30.0))
        tape.at(29.0, LauncherEnded(1, output, others=True))
        state = tape.state(30.0)
        arguments = "n1 (node 1) was lost and did not come back: the launcher ended with code 1: " + output[0]
        assert state.attempts[1].failure == Failure(-1, "n1", 1, WALL + 29.0, arguments)
        assert state.attempts[1].decision == "too-few"
        assert (state.excluded, len(state.attempts)) == (("n1",), 2)
        assert state.state is (State.PENDING if elsewhere is survival else State.NODE_FAIL)


@pytest.mark.parametrize("code, is_listed", [(99, True), (98, False)])
def test_an_exit_code_for_which_slurm_requeues_other_jobs_names_the_option(
    code: int, is_listed: bool
) -> None:
    tape = allocated(2, survival=Survival(requeue_exit="1-9,99"))
    tape.at(5.0, failed(0, 5.0, code))
    tape.at(5.4)
    all_gone(tape, 6.0)
    tape.at(12.0)
    assert ("RequeueExit" in tape.state(12.0).reason) is is_listed


def test_an_unkillable_process_costs_its_node_and_not_the_run_if_there_is_a_spare() -> None:
    tape = allocated(3, max_restarts=1)
    tape.at(5.0, failed(3, 5.0))
    tape.at(5.3)
    assert ClaimEpoch(0) in all_gone(tape, 6.0, stuck=("77 in nfs_wait",))
    assert sent(tape.does(6.1, EpochClaimed(1))) == [(2, ReservePort(1))]
    assert tape.state(7.0).excluded == ("n0",)


def test_agents_that_end_with_their_launcher_blame_no_node() -> None:
    tape = allocated(2)
    tape.at(5.0, LauncherEnded(137))
    tape.at(5.1, MessageCame(1, RanksGone(0)), AgentLeft(1, "closed"))
    tape.at(5.4)
    state = tape.state(6.0, MessageCame(0, RanksGone(0)))
    assert state.failure is not None
    text = "the launcher ended with code 137, and the agents with it"
    assert (state.state, state.failure.node, state.failure.why) == (State.FAILED, "", text)


def test_a_controller_that_is_away_is_waited_for_ten_minutes_and_nothing_is_charged() -> None:
    orders = replace(ORDERS, launch=("srun",))
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(names=("n0", "n1"))))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    text = "srun: error: Unable to confirm allocation for job 3: Unable to contact slurm controller"
    time, launches = 0.0, 0
    while time < 620:
        tape.at(time, LauncherEnded(1, (text,)))
        pause = next((p for p in (1, 2, 4, 8, 10) if LaunchAgents() in tape.does(time + p)), None)
        if pause is None:
            break
        assert pause == min(2**launches, 10)
        time, launches = time + pause, launches + 1
    assert 600 < time < 620
    state = tape.state(time)
    assert (state.state, len(state.attempts)) == (State.FAILED, 1)
    assert "Unable to contact slurm controller" in state.reason


def test_a_request_to_end_that_comes_late_after_a_failure_leads_to_no_other_attempt() -> None:
    tape = training(max_restarts=3)
    tape.at(5.0, failed(3, 5.0))
    tape.at(5.3)
    tape.at(9.0, CancelAsked())
    actions = all_gone(tape, 10.0)
    assert ClaimEpoch(0) not in actions
    state = tape.state(11.0)
    assert (state.state, state.attempts[0].outcome) == (State.CANCELLED, "CANCELLED")


def without_agents() -> Tape:
    """Return a coordinator that lost all agents at once and has claimed the next attempt."""
    tape = allocated(3, max_restarts=2)
    for node in range(3):
        tape.at(5.0, AgentLeft(node, "closed"))
    tape.at(5.3)
    tape.at(29.0)
    tape.at(29.1, EpochClaimed(1))
    return tape


def test_an_end_of_all_agents_blames_no_node_and_uses_no_spare() -> None:
    tape = without_agents()
    assert tape.does(29.2, LauncherEnded(137)) == [LaunchAgents(())]
    assert tape.state(30.0).excluded == ()


def test_the_late_exit_of_an_older_launcher_does_not_end_the_next_one() -> None:
    tape = without_agents()
    assert tape.does(29.2, LauncherEnded(137, launch=1)) == [LaunchAgents(())]
    assert tape.does(29.3, LauncherEnded(137, launch=1)) == []
    assert tape.state(29.3).attempts[1].failure is None
    tape.at(29.4, LauncherEnded(137, launch=2))
    failure = tape.state(29.4).attempts[1].failure
    assert failure is not None and failure.node == ""


def test_a_launcher_that_is_killed_before_anybody_has_come_costs_no_spare() -> None:
    orders = replace(ORDERS, spares=1, launch=("srun",), max_restarts=1)
    names = ("n0", "n1", "n2")
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(names=names, job_id="77")))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    assert ClaimEpoch(0) in tape.at(1.0, LauncherEnded(137, ("srun: error: killed",)))
    assert tape.does(1.1, EpochClaimed(1)) == [LaunchAgents(())]
    assert tape.state(2.0).excluded == ()


def test_a_node_that_the_launcher_named_is_left_out_of_the_next_launch() -> None:
    tape = allocated(3, max_restarts=2)
    for node in range(3):
        tape.at(5.0, AgentLeft(node, "closed"))
    tape.at(5.2, LauncherEnded(233, ("srun: error: Task launch for StepId=1.0 failed on node n0: late",)))
    tape.at(5.3)
    tape.at(29.0)
    assert tape.does(29.1, EpochClaimed(1)) == [LaunchAgents(("n0",))]


def test_the_loss_of_the_launcher_is_no_attempt_without_progress() -> None:
    tape = training(max_restarts=3, survival=Survival(no_progress=1))
    tape.reported = (3, -1)
    crash(tape, 5.0, 0)
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, 1)
    tape.at(10.0, LauncherEnded(137))
    tape.at(10.1, AgentLeft(1, "closed"))
    tape.at(10.4)
    tape.at(11.0, MessageCame(0, RanksGone(1)))
    for second in range(12, 34):
        tape.at(float(second), MessageCame(0, Beat(second)))
    state = tape.state(35.0)
    assert (state.state, state.phase) == (State.RUNNING, Phase.RESTARTING)
    assert state.reason.startswith("restart 2 of 3: the launcher ended with code 137, and the agents with it")


@pytest.mark.parametrize(("spares", "without"), [(1, ("n1",)), (0, ())])
def test_a_lost_node_stays_lost_for_the_next_coordinator_unless_too_few_remain(
    spares: int, without: tuple[str, ...]
) -> None:
    orders = replace(ORDERS, nodes=3 - spares, spares=spares, launch=("srun",), max_restarts=2)
    names = ("n0", "n1", "n2")
    tape = Tape(Coordinator(orders, "login", 42, collaborators=Collaborators(names=names, job_id="77")))
    tape.at(0.0)
    earlier = (Attempt(0, "first start", ("n0", "n2"), WALL, job_id="77"),)
    claimed = EpochClaimed(1, earlier, False, (), "coordinator", 0.0, "login", ("n0", "n2"))
    assert tape.does(0.1, claimed) == [LaunchAgents(without)]
    assert tape.state(0.2).excluded == without


@pytest.mark.parametrize(("heard", "apart"), [((), "login (login may itself be cut off)"), ((2,), "n2")])
def test_several_nodes_that_go_silent_together_are_one_event_without_blame(
    heard: tuple[int, ...], apart: str
) -> None:
    tape = allocated(3, max_restarts=2)
    for second in range(2, 40):
        beat(tape, second, second, *heard)
        tape.at(second + 0.5)
    failure = tape.state(40.1).attempts[0].failure
    assert failure is not None
    output = (
        f"n[0-1] fell silent at the same time: the network is partitioned between them and {apart}, or they"
    )
    assert (failure.node, failure.why) == ("", f"{output} are down; what does sinfo -N -n n[0-1] say?")


@pytest.mark.parametrize(
    ("orphan", "at", "peer"), [("n0", 20.0, "login"), ("n0", -20.0, ""), ("n1", 20.0, ""), ("", 0.0, "")]
)
def test_a_lost_node_that_reports_that_it_lives_is_one_end_of_a_broken_connection(
    orphan: str, at: float, peer: str
) -> None:
    tape = allocated(2)
    tape.reported = (-1, -1, False, orphan, WALL + at)
    for second in range(2, 60):
        beat(tape, second, second, 1)
        tape.at(second + 0.5)
    failure = tape.state(60.1).attempts[0].failure
    assert failure is not None
    assert (failure.node, failure.peer) == ("n0", peer)


def test_a_node_whose_connection_the_coordinator_ended_is_no_broken_connection() -> None:
    tape = allocated(2)
    tape.reported = (-1, -1, False, "n0", WALL + 20.0)
    tape.at(3.0, MessageCame(0, RanksStarted(7)))
    for second in range(4, 60):
        beat(tape, second, second, 1)
        tape.at(second + 0.5)
    failure = tape.state(60.1).attempts[0].failure
    assert failure is not None
    assert (failure.node, failure.peer) == ("n0", "")


def test_a_node_that_goes_silent_long_before_another_is_named_alone() -> None:
    tape = allocated(3, max_restarts=2)
    for second in range(2, 60):
        beat(tape, second, second, *((1, 2) if second < 16 else (2,)))
        tape.at(second + 0.5)
    failure = tape.state(60.1).attempts[0].failure
    assert failure is not None
    assert (failure.node, failure.why) == ("n0", "n0 (node 0) was lost: no heartbeat for 12 s")
