"""The agent's laws of sidecars, one short tape each: given events, exact actions."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from clusterrun.agent.actions import Exit, StartSidecar, Sweep, Tell
from clusterrun.agent.agent import OBSERVE_AFTER_SECONDS, Agent
from clusterrun.agent.events import Disconnected, LeftoversEnded, Told, Welcomed
from clusterrun.protocol.messages import (
    Ack,
    AskSidecar,
    EndSidecar,
    Farewell,
    RankExited,
    RanksGone,
    RanksStarted,
    SidecarEnded,
    SidecarSaid,
    StartRanks,
)
from clusterrun.runtime.machine_events import SignalCame, Tick
from tests.coordinator.tapes import MEETING, WALL, WORLD, Tape, agent, start, told

ASK = Told(AskSidecar(0, "examiner", 1, "look"))


def examined(epoch: int = 0) -> Tape:
    tape = agent()
    tape.at(1.0, Told(AskSidecar(epoch, "examiner", 1, "look")))
    return tape


def watched() -> Tape:
    """Return an agent whose observed ranks of epoch 0 run."""
    tape = Tape(Agent(0, 2, observed=True))
    tape.at(0.0, Welcomed(), Told(Ack(0, WALL)), start())
    return tape


def test_a_question_is_passed_on_and_its_answer_reported() -> None:
    tape = agent()
    assert tape.does(1.0, ASK) == [AskSidecar(0, "examiner", 1, "look")]
    assert tape.does(2.0, SidecarSaid(0, "examiner", 1, "well")) == [
        Tell(SidecarSaid(0, "examiner", 1, "well"))
    ]


def test_the_exit_of_a_sidecar_is_reported_once_and_it_can_start_again() -> None:
    tape = examined()
    ended = SidecarEnded(0, "examiner", "exited with code 3")
    assert told(tape.does(2.0, ended, ended)) == [SidecarEnded(0, "examiner", "exited with code 3")]
    assert tape.does(3.0, ASK) == [AskSidecar(0, "examiner", 1, "look")]


def test_the_examiner_ends_before_ranks_start() -> None:
    assert examined().does(2.0, start()) == [EndSidecar(0, "examiner"), StartRanks(0, WORLD, 0, MEETING)]


def test_the_examiner_ends_before_an_older_attempt_is_swept() -> None:
    tape = examined(epoch=3)
    assert tape.does(2.0, start(3)) == [EndSidecar(3, "examiner"), Sweep(2)]


def test_late_output_of_a_dismissed_sidecar_is_dropped() -> None:
    tape = examined()
    tape.at(2.0, Told(EndSidecar(0, "examiner")))
    late = (SidecarSaid(0, "examiner", 1, "well"), SidecarEnded(0, "examiner", "killed"))
    assert tape.does(3.0, *late) == []


def test_a_start_that_is_refused_costs_no_examiner() -> None:
    tape = agent()
    tape.at(
        1.0,
        start(),
        RanksStarted(0),
        RankExited(0, 0, 1),
        RankExited(0, 1, 1),
        LeftoversEnded(0),
        RanksGone(0),
    )
    tape.at(2.0, Told(AskSidecar(1, "examiner", 1, "look")))
    assert tape.does(3.0, start(0)) == []


@pytest.mark.parametrize("order", [ASK, Told(AskSidecar(1, "examiner", 1, "look"))])
def test_no_examiner_runs_while_ranks_live(order: Any) -> None:
    tape = agent()
    tape.at(1.0, start(), RanksStarted(0))
    (answer,) = told(tape.does(2.0, order))
    assert answer == SidecarEnded(order.message.epoch, "examiner", "ranks were started on this node")


def test_no_examiner_runs_for_an_epoch_that_was_started() -> None:
    tape = agent()
    tape.at(
        1.0,
        start(),
        RanksStarted(0),
        RankExited(0, 0, 1),
        RankExited(0, 1, 1),
        LeftoversEnded(0),
        RanksGone(0),
    )
    assert told(tape.does(2.0, ASK)) == [SidecarEnded(0, "examiner", "ranks were started on this node")]
    assert tape.does(2.0, Told(AskSidecar(1, "examiner", 1, "x"))) == [AskSidecar(1, "examiner", 1, "x")]


def test_a_question_of_a_later_epoch_ends_the_older_sidecar() -> None:
    tape = examined()
    assert tape.does(2.0, Told(AskSidecar(1, "examiner", 9, "x"))) == [
        EndSidecar(0, "examiner"),
        AskSidecar(1, "examiner", 9, "x"),
    ]
    assert told(tape.does(3.0, ASK)) == [
        SidecarEnded(0, "examiner", "a sidecar of epoch 1 runs on this node")
    ]


def test_a_node_that_ends_starts_no_sidecar() -> None:
    tape = agent()
    tape.at(1.0, SignalCame(signal.SIGTERM))
    assert told(tape.does(2.0, ASK)) == [SidecarEnded(0, "examiner", "this node was ordered to end")]


@pytest.mark.parametrize("end, code", [(Told(Farewell()), 0), (Disconnected("reset"), 1)])
def test_an_examiner_keeps_no_agent_from_leaving(end: Any, code: int) -> None:
    assert examined().does(2.0, end) == [Exit(code)]


def test_an_observer_comes_soon_after_the_ranks_and_only_where_it_was_ordered() -> None:
    started, due = Tell(RanksStarted(0)), 1.0 + OBSERVE_AFTER_SECONDS
    tape = watched()
    assert tape.does(1.0, RanksStarted(0)) == [started]
    assert StartSidecar(0, "observer") not in tape.does(due - 0.1, Tick())
    assert tape.machine.wakes_at() == due
    assert StartSidecar(0, "observer") in tape.does(due, Tick())
    assert StartSidecar(0, "observer") not in tape.does(due + 1, Tick())
    tape = agent()
    tape.at(1.0, start())
    assert tape.does(1.0, RanksStarted(0)) == [started]
    assert StartSidecar(0, "observer") not in tape.does(due, Tick())


def test_an_observer_that_a_question_brought_does_not_come_twice() -> None:
    tape = watched()
    tape.at(1.0, RanksStarted(0))
    question = AskSidecar(0, "observer", 1, "s")
    assert tape.does(1.5, Told(question)) == [AskSidecar(0, "observer", 1, "s")]
    assert StartSidecar(0, "observer") not in tape.does(1.0 + OBSERVE_AFTER_SECONDS, Tick())


def test_ranks_that_have_ended_already_are_not_observed() -> None:
    tape = watched()
    tape.at(1.0, RankExited(0, 0, 1), RankExited(0, 1, 1))
    tape.at(1.1, RanksStarted(0))
    assert StartSidecar(0, "observer") not in tape.does(1.1 + OBSERVE_AFTER_SECONDS, Tick())


def test_an_observer_runs_only_beside_the_ranks_of_its_epoch() -> None:
    tape = watched()
    tape.at(1.0, RanksStarted(0))
    for epoch, answer in ((0, [AskSidecar(0, "observer", 1, "s")]), (1, "no ranks run on this node")):
        does = tape.does(2.0, Told(AskSidecar(epoch, "observer", 1, "s")))
        assert does == answer or told(does) == [SidecarEnded(epoch, "observer", answer)]
    tape.at(3.0, RankExited(0, 0, 1), RankExited(0, 1, 1), LeftoversEnded(0), RanksGone(0))
    assert told(tape.does(4.0, Told(AskSidecar(0, "observer", 1, "s")))) == [
        SidecarEnded(0, "observer", "no ranks run on this node")
    ]
