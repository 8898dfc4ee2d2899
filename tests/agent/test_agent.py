"""The agent's laws, one short tape each: given events, exact actions."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from clusterrun.agent.actions import (
    AwaitLeftovers,
    EndLeftovers,
    Exit,
    ReleasePort,
    RenewLease,
    Sweep,
    Tell,
    TerminateRanks,
)
from clusterrun.agent.agent import Agent
from clusterrun.agent.events import Disconnected, LeftoversEnded, ShimLost, Told, Welcomed
from clusterrun.model import contract
from clusterrun.protocol.messages import (
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
    SignalTaken,
    StartFailed,
    StartRanks,
    StopRanks,
)
from clusterrun.runtime.machine_events import SignalCame, StoodStill
from tests.coordinator.tapes import MEETING, WALL, WORLD, Tape, agent, start, told

TERM = TerminateRanks(0)
PASSED = SignalRanks(0, signal.SIGTERM, to_all=True)


def running() -> Tape:
    tape = agent()
    assert tape.does(1.0, start(), RanksStarted(0)) == [
        StartRanks(0, WORLD, 0, MEETING),
        Tell(RanksStarted(0)),
    ]
    return tape


def test_a_welcome_is_answered_with_a_beat_and_gives_the_shim_a_deadline() -> None:
    assert Tape(Agent(0, 1)).at(7.0, Welcomed()) == [RenewLease(27.0), Tell(Beat(0))]


def test_beats_come_every_five_seconds() -> None:
    tape = agent()
    assert [tape.machine.wakes_at(), tape.does(5.0), tape.machine.wakes_at()] == [5.0, [Tell(Beat(1))], 10.0]


def test_a_tick_that_comes_early_does_nothing() -> None:
    assert agent().at(4.9) == []


def test_the_lease_counts_from_the_sending_of_the_beat_that_was_acknowledged() -> None:
    tape = agent()
    tape.at(5.0)
    assert tape.at(9.0, Told(Ack(1, WALL))) == [RenewLease(25.0)]


@pytest.mark.parametrize(
    "message", [StopRanks(3, 1.0), ReservePort(0), SignalRanks(0, 10), Ack(99, 0.0), Ack(0, 0.0)]
)
def test_nothing_but_the_first_answer_to_a_beat_lengthens_the_lease(message: Any) -> None:
    assert not [a for a in agent().at(3.0, Told(message)) if isinstance(a, RenewLease)]


def test_an_answer_that_comes_after_the_lease_ran_out_lengthens_nothing() -> None:
    tape = agent()
    tape.at(5.0)
    assert tape.at(20.0, Told(Ack(1, WALL))) == []


def test_ranks_are_killed_without_grace_and_the_agent_exits_when_the_lease_expires() -> None:
    tape = running()
    assert tape.does(20.0) == [Sweep(0)]
    assert tape.does(20.1, RanksGone(0)) == [Tell(RanksGone(0)), Exit(1)]


def test_ranks_do_not_start_before_a_beat_was_acknowledged() -> None:
    tape = agent(acknowledged=False)
    assert told(tape.does(1.0, start())) == [
        StartFailed(0, "no heartbeat of this node was acknowledged in time")
    ]


def test_an_epoch_that_was_seen_never_starts_again() -> None:
    tape = running()
    tape.at(2.0, RankExited(0, 0, 0), RankExited(0, 1, 0), RanksGone(0))
    assert tape.does(3.0, start(0)) == []


def test_a_stop_for_an_epoch_that_never_ran_is_answered_at_once_and_forbids_it() -> None:
    tape = agent()
    assert tape.does(1.0, Told(StopRanks(4, 8.0))) == [Tell(RanksGone(4))]
    assert [tape.does(2.0, start(epoch)) for epoch in (3, 4)] == [[], []]


def test_older_attempts_are_swept_before_a_later_one_starts() -> None:
    tape = agent()
    assert tape.does(1.0, start(3)) == [Sweep(2)]
    assert tape.does(1.1, RanksGone(2)) == [StartRanks(3, WORLD, 0, MEETING)]


def test_a_process_of_an_older_attempt_in_d_state_forbids_a_start() -> None:
    tape = agent()
    tape.at(1.0, start(3))
    why = "processes of an older attempt cannot be killed: 77 in nfs_wait"
    stuck = ("77 in nfs_wait",)
    assert told(tape.does(1.1, RanksGone(2, stuck))) == [StartFailed(3, why), RanksGone(3, stuck)]


def test_a_stop_is_term_then_a_sweep_when_the_grace_is_over() -> None:
    tape = running()
    assert [tape.does(2.0, Told(StopRanks(0, 8.0))), tape.does(9.9), tape.machine.wakes_at()] == [
        [TERM],
        [Tell(Beat(1))],
        10.0,
    ]
    assert tape.does(10.0) == [Sweep(0)]
    assert tape.does(10.1, RanksGone(0, ("5 in D",))) == [Tell(RanksGone(0, ("5 in D",)))]


@pytest.mark.parametrize(
    "again", [Told(StopRanks(0, 8.0)), Told(StopRanks(0, 0.0)), SignalCame(signal.SIGTERM)]
)
def test_a_second_request_to_end_neither_shortens_nor_lengthens_the_grace(again: Any) -> None:
    tape = running()
    tape.at(2.0, Told(StopRanks(0, 2.0)))
    assert [a for a in tape.does(3.0, again) if not isinstance(a, Tell)] == []
    assert [tape.does(3.9), tape.does(4.0)] == [[], [Sweep(0)]]


def test_a_rank_that_ends_after_the_stop_is_reported_as_a_consequence() -> None:
    tape = running()
    assert told(tape.does(2.0, RankExited(0, 0, 3, 0.0, ("x",), "y", True))) == [
        RankExited(0, 0, 3, WALL + 2.0, ("x",), "y", True, False)
    ]
    tape.at(3.0, Told(StopRanks(0, 8.0)))
    assert told(tape.does(4.0, RankExited(0, 1, -15)))[0] == RankExited(0, 1, -15, WALL + 4.0, stopped=True)


def test_a_node_reports_clean_after_it_swept_what_its_ranks_left() -> None:
    tape = running()
    assert tape.does(2.0, RankExited(0, 0, 0), RankExited(0, 1, 0))[-1] == AwaitLeftovers(0, False)
    assert tape.does(2.0, LeftoversEnded(0)) == [Sweep(0)]
    assert tape.does(2.1, RanksGone(0)) == [Tell(RanksGone(0))]


def finishing(code: int = 0) -> Tape:
    """Return an agent whose ranks all ended at 2.0 s, one of them with ``code``."""
    tape = running()
    end = tape.does(2.0, RankExited(0, 0, code), RankExited(0, 1, 0))[-1]
    assert end == AwaitLeftovers(0, filters_only=bool(code))
    return tape


def test_children_of_ranks_with_exit_code_0_may_finish_then_get_term_then_kill() -> None:
    tape = finishing()
    term_at = 2.0 + contract.FINISH_SECONDS
    kill_at = term_at + contract.KILL_WAIT_SECONDS
    for beat in range(1, int(kill_at) // 5 + 1):
        tape.at(5.0 * beat - 1.0, Told(Ack(beat - 1, WALL)))
        assert tape.does(5.0 * beat) == [Tell(Beat(beat))]
        if beat == int(term_at) // 5:
            assert tape.machine.wakes_at() == term_at
            assert tape.does(term_at) == [EndLeftovers(0)]
    assert tape.machine.wakes_at() == kill_at
    assert tape.does(kill_at) == [Sweep(0)]


def test_processes_that_outlived_their_ranks_are_reported_once_and_on_request() -> None:
    tape = finishing()
    tape.at(3.0, LeftoversEnded(0))
    ranks_gone = RanksGone(0, cut=("python (7)",))
    assert tape.does(3.1, ranks_gone) == [Tell(ranks_gone)]
    assert tape.does(3.2, Told(StopRanks(0, 8.0))) == [Tell(ranks_gone)]


def test_the_agent_waits_only_for_output_filters_of_failed_ranks() -> None:
    tape = finishing(code=1)
    assert tape.does(2.3, Told(StopRanks(0, 8.0))) == []
    assert [tape.does(6.9)[-1:], tape.does(2.0 + contract.DRAIN_SECONDS)] == [[Tell(Beat(1))], [Sweep(0)]]


def test_the_program_of_a_shell_that_a_signal_ended_may_save_until_the_grace_time_is_over() -> None:
    ends = (RankExited(0, 0, 140), RankExited(0, 1, 140))
    tape = running()
    tape.at(2.0, Told(SignalRanks(0, signal.SIGUSR2)))
    assert tape.does(2.0 + contract.DRAIN_SECONDS, *ends)[-1] == AwaitLeftovers(0, True)
    tape = running()
    tape.at(2.0, Told(SignalRanks(0, signal.SIGUSR2)))
    assert tape.does(2.1, *ends)[-1] == AwaitLeftovers(0, False)
    assert tape.does(2.4, Told(StopRanks(0, 2.0))) == []
    assert [tape.does(4.3), tape.does(4.4)] == [[], [Sweep(0)]]


def test_a_stop_gives_leftover_processes_a_term_and_the_grace_time() -> None:
    tape = finishing()
    assert tape.does(3.0, Told(StopRanks(0, 4.0))) == [EndLeftovers(0)]
    assert [tape.does(6.9)[-1:], tape.does(7.0)] == [[Tell(Beat(1))], [Sweep(0)]]


def test_leftovers_of_ranks_that_end_well_after_a_term_have_the_rest_of_the_grace_time() -> None:
    tape = running()
    tape.at(2.0, Told(StopRanks(0, 2.0)))
    assert tape.does(3.0, RankExited(0, 0, 0), RankExited(0, 1, 0))[-1] == AwaitLeftovers(0, False)
    assert [tape.does(3.9), tape.does(4.0)] == [[], [Sweep(0)]]


def test_the_program_of_a_shell_that_a_stop_ended_gets_the_term_and_the_rest_of_the_grace_time() -> None:
    tape = running()
    tape.at(2.0, Told(StopRanks(0, 2.0)))
    ordered = tape.does(2.1, RankExited(0, 0, -15), RankExited(0, 1, -15))
    assert ordered[-2:] == [AwaitLeftovers(0, False), EndLeftovers(0)]
    assert [tape.does(3.9), tape.does(4.0)] == [[], [Sweep(0)]]


def test_processes_that_survive_slurms_term_get_the_grace_time_and_no_second_term() -> None:
    tape = running()
    tape.at(2.0, SignalCame(signal.SIGTERM))
    assert tape.does(2.1, RankExited(0, 0, -15), RankExited(0, 1, -15))[-1] == AwaitLeftovers(0, False)
    assert tape.does(3.0, Told(StopRanks(0, 90.0))) == []
    for beat in range(1, 18):
        tape.at(5.0 * beat - 1.0, Told(Ack(beat - 1, WALL)))
        assert tape.does(5.0 * beat) == [Tell(Beat(beat))]
    assert [tape.does(91.9)[-1:], tape.does(92.0)] == [[Tell(Beat(18))], [Sweep(0)]]


def test_a_lost_lease_sweeps_leftover_processes_at_once() -> None:
    tape = finishing()
    assert Sweep(0) in tape.does(20.0)
    assert tape.does(20.0, LeftoversEnded(0)) == []


def test_a_stop_after_the_end_is_answered_again() -> None:
    tape = running()
    tape.at(2.0, RankExited(0, 0, 0), RankExited(0, 1, 0), LeftoversEnded(0), RanksGone(0, ("5 in D",)))
    assert tape.does(3.0, Told(StopRanks(0, 8.0))) == [Tell(RanksGone(0, ("5 in D",)))]


def test_a_stop_while_ranks_are_being_started_is_carried_out_when_they_are() -> None:
    tape = agent()
    tape.at(1.0, start())
    assert tape.does(1.1, Told(StopRanks(0, 8.0))) == []
    assert tape.does(1.2, RanksStarted(0)) == [Tell(RanksStarted(0)), TERM]
    assert tape.does(9.1)[-1] == Sweep(0)


def test_a_failed_start_is_reported_and_swept() -> None:
    tape = agent()
    tape.at(1.0, start())
    assert tape.does(1.1, StartFailed(0, "no such program")) == [
        Tell(StartFailed(0, "no such program")),
        Sweep(0),
    ]


def test_the_port_is_held_until_the_epoch_is_over() -> None:
    tape = agent()
    assert tape.does(1.0, Told(ReservePort(0))) == [ReservePort(0)]
    assert tape.does(1.0, PortReserved(0, 29000)) == [Tell(PortReserved(0, 29000))]
    assert ReleasePort() not in tape.does(
        1.1, start(), RanksStarted(0), RankExited(0, 0, 0), RankExited(0, 1, 0), LeftoversEnded(0)
    )
    assert tape.does(2.0, RanksGone(0)) == [Tell(RanksGone(0)), ReleasePort()]


def test_the_port_of_a_cancelled_start_is_released() -> None:
    tape = agent()
    tape.at(1.0, Told(ReservePort(0)), PortReserved(0, 29000))
    assert tape.does(2.0, Told(StopRanks(0, 8.0))) == [ReleasePort(), Tell(RanksGone(0))]


def acknowledged(tape: Tape, first: int, last: int) -> list[Any]:
    """Return the agent's actions in these seconds; every heartbeat is acknowledged."""
    out: list[Any] = []
    for second in range(first, last + 1):
        acted = tape.does(float(second))
        beats = [message for message in told(acted) if isinstance(message, Beat)]
        out += acted + tape.does(float(second), *(Told(Ack(beat.number, WALL)) for beat in beats))
    return out


def test_ranks_end_after_a_term_if_the_coordinator_does_not_explain_it() -> None:
    tape = running()
    assert tape.does(2.0, SignalCame(signal.SIGTERM)) == [Tell(SignalSeen(signal.SIGTERM)), PASSED]
    assert tape.does(5.9) == [Tell(Beat(1))]
    assert tape.does(6.0) == [TerminateRanks(0, only_unreached=True)]
    assert Sweep(0) not in acknowledged(tape, 6, 31)
    assert Sweep(0) in tape.does(32.0)  # 30 s after the TERM, not after the end of our patience


def test_every_signal_of_slurm_but_our_notice_reaches_the_ranks_at_once() -> None:
    passed = {}
    for number in (*contract.TERMINATE_SIGNALS, contract.NOTICE_SIGNAL, *contract.USERS_SIGNALS):
        acted = running().does(2.0, SignalCame(number))
        assert acted[0] == Tell(SignalSeen(number))
        passed[number] = acted[1:]
    assert passed.pop(contract.NOTICE_SIGNAL) == []
    assert passed == {number: [SignalRanks(0, number, to_all=True)] for number in passed}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_from_slurm_and_from_the_coordinator_counts_as_one(number: int) -> None:
    ordered, own = Told(SignalRanks(0, number)), SignalCame(number)
    of_slurm = SignalRanks(0, number, to_all=True)
    for first, second in ((ordered, own), (own, ordered)):
        tape = running()
        passed = tape.does(2.0, first), tape.does(3.0, second), tape.does(3.1, own)  # Slurm sent it twice
        passed = [[action for action in actions if isinstance(action, SignalRanks)] for actions in passed]
        assert passed == [[SignalRanks(0, number)] if first is ordered else [of_slurm], [], [of_slurm]]


def test_the_grace_starts_at_slurms_term_and_no_rank_gets_a_second_term() -> None:
    tape = running()
    tape.at(2.0, SignalCame(signal.SIGTERM))
    assert tape.does(4.0, Told(StopRanks(0, 27.0))) == [TerminateRanks(0, only_unreached=True)]
    tape.at(20.0, Told(Ack(0, WALL)))
    assert tape.machine._ranks.kill_at == 29.0


def test_a_term_long_before_the_stop_is_a_separate_signal() -> None:
    tape = running()
    tape.at(2.0, SignalCame(signal.SIGTERM), Told(SignalRanks(0, signal.SIGUSR2)))
    assert tape.does(13.0, Told(StopRanks(0, 27.0)))[-1] == TERM
    assert tape.machine._ranks.kill_at == 40.0


def test_a_user_may_shorten_the_time_from_term_to_kill() -> None:
    tape = running()
    tape.at(2.0, Told(StopRanks(0, 27.0)))
    assert tape.does(3.0, Told(StopRanks(0, 1.0, sooner=True))) == []
    assert tape.does(4.0) == [Sweep(0)]


def test_the_agent_exits_after_a_term_if_the_coordinator_does_not_answer() -> None:
    tape = running()
    tape.at(2.0, SignalCame(signal.SIGTERM), RankExited(0, 0, -15), RankExited(0, 1, -15))
    tape.at(2.0, LeftoversEnded(0), RanksGone(0))
    tape.at(6.0)
    assert Exit(143) not in acknowledged(tape, 6, 40)
    assert Exit(143) in tape.does(41.0)


def test_an_agent_that_lost_its_coordinator_does_not_ask_about_a_term() -> None:
    tape = running()
    assert tape.does(2.0, Disconnected("reset")) == [TERM]
    assert tape.does(2.1, SignalCame(signal.SIGTERM)) == []
    tape.at(2.2, RankExited(0, 0, -15), RankExited(0, 1, -15), LeftoversEnded(0))
    assert tape.does(2.3, RanksGone(0)) == [Exit(1)]


def test_ranks_that_end_early_after_a_notice_end_for_their_own_reasons() -> None:
    tape = running()
    tape.at(2.0, SignalCame(signal.SIGTERM))
    assert told(tape.at(2.1, RankExited(0, 0, -15))) == [RankExited(0, 0, -15, WALL + 2.1)]
    assert tape.does(2.2, Told(SignalRanks(0, signal.SIGUSR2))) == [SignalRanks(0, signal.SIGUSR2)]
    assert tape.does(9.0) == [Tell(Beat(1))]
    assert told(tape.at(9.5, RankExited(0, 1, 0))) == [RankExited(0, 1, 0, WALL + 9.5)]


def test_the_number_of_ranks_that_took_a_notice_is_reported() -> None:
    tape = running()
    assert told(tape.at(2.0, SignalTaken(0, signal.SIGUSR2, 1))) == [SignalTaken(0, signal.SIGUSR2, 1)]
    assert told(tape.at(2.0, SignalTaken(0, signal.SIGTERM, 2))) == [SignalTaken(0, signal.SIGTERM, 2)]


def test_a_notice_is_reported_and_reaches_no_rank_before_the_coordinator_decides() -> None:
    tape = running()
    assert tape.does(2.0, SignalCame(signal.SIGUSR2)) == [Tell(SignalSeen(signal.SIGUSR2))]
    assert tape.does(2.1, Told(SignalRanks(0, signal.SIGUSR2))) == [SignalRanks(0, signal.SIGUSR2)]


def test_a_lost_coordinator_ends_the_ranks_within_the_grace() -> None:
    tape = running()
    assert tape.does(3.0, Disconnected("reset")) == [TERM]
    assert tape.does(11.0) == [Sweep(0)]
    assert tape.does(11.1, RanksGone(0)) == [Exit(1)]


def test_a_lost_coordinator_cannot_stretch_the_grace_over_the_end_of_the_lease() -> None:
    tape = running()
    tape.at(15.0, Disconnected("reset"))
    assert tape.machine.wakes_at() == 17.0  # before the shim kills all, also who is to see to the job
    assert tape.does(17.0) == [Sweep(0)]


def test_a_node_that_is_not_answered_ends_its_ranks_before_its_shim_does_and_outlives_them() -> None:
    tape = running()
    assert tape.does(16.9)[-1] == Tell(Beat(1))
    assert tape.does(17.0) == [Sweep(0)]
    assert tape.does(17.1, RanksGone(0)) == [Tell(RanksGone(0)), Exit(1)]
    assert tape.machine.orphaned


@pytest.mark.parametrize("seconds", [16.0, 70.0, 86400.0])
def test_a_node_that_was_suspended_asks_and_continues_by_the_answer(seconds: float) -> None:
    tape = running()
    woke = 2.0 + seconds
    assert tape.does(woke, StoodStill(seconds)) == [Tell(Beat(1))]
    assert tape.does(woke + 4.0) == []
    assert tape.at(woke + 8.0, Told(Ack(1, WALL))) == [RenewLease(woke + 20.0)]
    assert tape.machine.wakes_at() == woke + 8.0 or tape.does(woke + 8.0)[-1] == Tell(Beat(2))
    assert tape.does(woke + 16.9)[-1:] != [Sweep(0)]
    assert tape.does(woke + 17.0) == [Sweep(0)]


def test_a_node_that_was_suspended_ends_its_ranks_without_an_answer() -> None:
    tape = running()
    assert tape.does(6.0) == [Tell(Beat(1))]
    assert tape.does(72.0, StoodStill(66.0)) == [Tell(Beat(2))]
    assert tape.at(72.1, Told(Ack(1, WALL))) == []  # an answer that was under way all the time
    assert tape.does(80.9)[-1:] != [Sweep(0)]
    assert tape.does(81.0) == [Sweep(0)]
    assert tape.at(81.05, Told(Ack(2, WALL))) == []
    assert tape.does(81.1, RanksGone(0)) == [Tell(RanksGone(0)), Exit(1)]
    assert tape.machine.orphaned


def test_a_start_that_reaches_a_node_which_stood_still_waits_for_the_answer() -> None:
    tape = agent()
    assert tape.does(72.0, StoodStill(70.0)) == [Tell(Beat(1))]
    assert tape.does(72.1, start()) == []
    assert StartRanks(0, WORLD, 0, MEETING) in tape.does(72.2, Told(Ack(1, WALL)))


def test_a_suspended_node_that_was_cleaned_starts_ranks_only_after_the_answer() -> None:
    tape = agent()
    assert tape.does(1.0, start(1)) == [Sweep(0)]
    assert tape.does(72.0, StoodStill(70.0)) == [Tell(Beat(1))]
    assert tape.does(72.1, RanksGone(0)) == []
    assert StartRanks(1, WORLD, 0, MEETING) in tape.does(72.2, Told(Ack(1, WALL)))


def test_a_suspended_node_that_was_cleaned_starts_nothing_without_an_answer() -> None:
    tape = agent()
    assert tape.does(1.0, start(1)) == [Sweep(0)]
    assert tape.does(72.0, StoodStill(70.0)) == [Tell(Beat(1))]
    assert tape.does(72.1, RanksGone(0)) == []
    assert tape.does(81.0)[-2:] == [Tell(RanksGone(1)), Exit(1)]


def test_a_node_ends_its_ranks_at_once_if_its_shim_is_lost() -> None:
    tape = running()
    assert tape.does(3.0, ShimLost()) == [Sweep(0)]
    tell, end = tape.does(3.1, RanksGone(0))
    assert "the first process of its agent was killed" in tell.message.why
    assert end == Exit(1)


def test_a_farewell_to_an_idle_node_is_its_end() -> None:
    tape = agent()
    assert [tape.does(1.0, Told(Farewell())), tape.does(2.0), tape.machine.wakes_at()] == [
        [Exit(0)],
        [],
        None,
    ]


def test_a_farewell_while_ranks_live_sweeps_first() -> None:
    tape = running()
    assert tape.does(2.0, Told(Farewell())) == [Sweep(0)]
    assert tape.does(2.1, RanksGone(0)) == [Tell(RanksGone(0)), Exit(0)]


def test_a_node_that_ends_refuses_to_start() -> None:
    tape = agent()
    tape.at(1.0, SignalCame(signal.SIGTERM))
    assert told(tape.does(1.1, start())) == [StartFailed(0, "this node was ordered to end")]
