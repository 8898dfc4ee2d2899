"""The coordinator's laws of requests, takeovers and the end, one short tape each."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from clusterrun.coordinator.actions import DropLink, EndLauncher, Finish, Send
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import (
    AgentLeft,
    CancelAsked,
    EpochClaimed,
    LauncherEnded,
    MessageCame,
    Superseded,
)
from clusterrun.model.orders import Orders
from clusterrun.model.record import Attempt
from clusterrun.model.states import State
from clusterrun.protocol.messages import (
    Beat,
    Farewell,
    PortReserved,
    RankExited,
    RanksGone,
    ReservePort,
    SignalRanks,
    SignalSeen,
    StartFailed,
)
from clusterrun.runtime.machine_events import Note, SignalCame
from tests.coordinator.tapes import (
    END,
    STOP,
    Tape,
    all_gone,
    coordinator,
    ending,
    failed,
    join,
    sent,
    stopped,
    train,
    training,
)


def test_ranks_that_could_not_be_started_end_the_run_with_the_node_and_the_reason() -> None:
    tape = coordinator(max_restarts=3)
    join(tape, 1.0)
    tape.at(1.0, MessageCame(0, PortReserved(0, 29000)), MessageCame(1, StartFailed(0, "no such program")))
    assert sent(tape.at(1.3)) == STOP
    state = ending(all_gone(tape, 2.0))
    assert [state.state, state.reason] == [State.FAILED, "n1 could not start its ranks: no such program"]


def test_a_port_that_cannot_be_had_ends_the_run() -> None:
    tape = coordinator()
    join(tape, 1.0)
    state = ending(tape.at(1.1, MessageCame(0, PortReserved(0, 0, "EMFILE"))))
    assert [state.state, state.reason] == [State.FAILED, "n0 could not reserve a port: EMFILE"]


@pytest.mark.parametrize(
    ("request_", "reason", "code"),
    [
        (SignalCame(signal.SIGTERM), "the coordinator got SIGTERM", 143),
        (SignalCame(signal.SIGINT), "the coordinator got SIGINT", 130),
        (MessageCame(1, SignalSeen(signal.SIGTERM)), "n1 got SIGTERM", 143),
        (CancelAsked(), "cancelled by request", 130),
    ],
)
def test_a_request_to_end_stops_all_ranks_and_ends_cancelled(request_: Any, reason: str, code: int) -> None:
    tape = training()
    assert sent(tape.at(3.0, request_)) == END
    state = ending(all_gone(tape, 4.0))
    assert [state.state, state.reason, state.exit_code] == [State.CANCELLED, reason, code]


def test_asking_again_changes_nothing() -> None:
    tape = training()
    tape.at(3.0, CancelAsked())
    assert sent(tape.at(4.0, SignalCame(signal.SIGTERM), CancelAsked())) == []
    assert ending(all_gone(tape, 5.0)).reason == "cancelled by request"


def test_ranks_that_exit_0_on_request_have_not_completed() -> None:
    tape = training()
    tape.at(3.0, CancelAsked())
    tape.at(4.0, *(failed(rank, 4.0, code=0, stopped=True) for rank in range(4)))
    assert ending(all_gone(tape, 5.0)).state is State.CANCELLED


def test_a_request_right_after_a_failure_is_its_cause() -> None:
    tape = training()
    tape.at(3.0, failed(3, 3.0, code=1))
    assert sent(tape.at(3.2, SignalCame(signal.SIGTERM))) == END
    assert ending(all_gone(tape, 4.0)).state is State.CANCELLED


def test_a_request_long_after_a_failure_only_forbids_the_restart() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    tape.at(9.0, CancelAsked())
    state = ending(all_gone(tape, 10.0))
    assert [state.state, state.failure is not None] == [State.CANCELLED, True]


def test_a_request_before_any_rank_runs_ends_the_run_at_once() -> None:
    actions = coordinator().at(1.0, CancelAsked())
    assert [ending(actions).state, EndLauncher() in actions] == [State.CANCELLED, True]


def test_a_local_time_limit_ends_the_run_as_timeout() -> None:
    tape = training(time_limit=60.0)
    for second in range(5, 60, 5):
        tape.at(float(second), MessageCame(0, Beat(second)), MessageCame(1, Beat(second)))
    assert [sent(tape.at(59.9)), sent(tape.at(60.0))] == [[], END]
    state = ending(all_gone(tape, 61.0))
    assert [state.state, state.reason] == [State.TIMEOUT, "the time limit of 60 s was reached"]


def test_a_notice_from_many_nodes_is_passed_on_once() -> None:
    tape = training()
    passed = [(0, SignalRanks(0, signal.SIGUSR2)), (1, SignalRanks(0, signal.SIGUSR2))]
    assert sent(tape.at(2.0, SignalCame(signal.SIGUSR2))) == passed
    assert sent(tape.at(2.5, MessageCame(0, SignalSeen(signal.SIGUSR2)))) == []


def test_messages_of_an_older_epoch_are_ignored_and_of_a_newer_one_end_the_connection() -> None:
    tape = stopped(failed(3, 5.0), max_restarts=1)
    all_gone(tape, 6.0)
    tape.at(6.1, EpochClaimed(1))
    train(tape, 6.2, epoch=1)
    assert tape.does(7.0, MessageCame(1, RankExited(0, 2, 9, 0.0)), MessageCame(1, RanksGone(0))) == []
    assert tape.does(7.0, MessageCame(1, RanksGone(2))) == [DropLink(1)]


def test_a_report_of_a_rank_that_is_not_its_own_costs_the_link() -> None:
    assert training().does(2.0, MessageCame(1, RankExited(0, 0, 0, 0.0))) == [DropLink(1)]


def test_a_superseded_coordinator_acknowledges_nothing_writes_nothing_and_ends() -> None:
    tape = training()
    assert sent(tape.at(2.0, Superseded(1))) == STOP
    assert tape.does(3.0, MessageCame(0, Beat(5))) == []
    actions = all_gone(tape, 4.0) + tape.at(4.1, AgentLeft(0, ""), AgentLeft(1, ""), LauncherEnded(0))
    assert [a for a in actions if not isinstance(a, Note)] == [
        Send(0, Farewell()),
        Send(1, Farewell()),
        Finish(1),
    ]


def test_ranks_wait_until_an_older_attempt_without_an_end_must_be_dead() -> None:
    tape = Tape(Coordinator(Orders("r", "r", 2, 2, 0, 1, ("t",), "/"), "h", 1))
    tape.at(0.0)
    earlier = (Attempt(0, "first start", ("n0", "n1"), 5.0),)
    tape.at(0.0, EpochClaimed(1, earlier, quiet=False))
    assert join(tape, 1.0) == []
    for second in range(2, 53):
        acks = [MessageCame(0, Beat(second)), MessageCame(1, Beat(second))]
        assert (0, ReservePort(1)) not in sent(tape.at(float(second), *acks))
    actions = tape.at(53.0)
    assert sent(actions) == [(0, ReservePort(1))]
    assert [a.epoch for a in tape.state(53.2).attempts] == [0, 1]


def test_a_node_that_never_reports_clean_is_fenced() -> None:
    tape = stopped(failed(3, 5.0))
    tape.at(6.0, MessageCame(0, RanksGone(0)))
    for second in range(7, 24):
        tape.at(float(second), MessageCame(0, Beat(second)), MessageCame(1, Beat(second)))
    assert DropLink(1) in tape.at(23.3)
    for second in range(24, 46):
        assert (0, Farewell()) not in sent(tape.at(float(second), MessageCame(0, Beat(second))))
    assert sent(tape.at(46.0)) == [(0, Farewell())]


def test_the_end_waits_for_agents_and_launcher_but_not_for_ever() -> None:
    tape = training()
    tape.at(3.0, CancelAsked())
    all_gone(tape, 4.0)
    assert [tape.does(8.9), tape.does(9.0), tape.does(13.9), tape.does(14.0)] == [
        [],
        [EndLauncher()],
        [],
        [Finish(130)],
    ]
