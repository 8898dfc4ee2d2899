"""Every order in which a few events can reach an agent, and what must hold in all of them."""

from __future__ import annotations

import itertools
import signal
from typing import Any

from clusterrun.agent.actions import Exit, Sweep, Tell
from clusterrun.agent.events import Disconnected, ShimLost, Told
from clusterrun.protocol.messages import (
    Farewell,
    RankExited,
    RanksGone,
    RanksStarted,
    StartFailed,
    StartRanks,
    StopRanks,
)
from clusterrun.runtime.machine_events import Now, SignalCame, Tick
from tests.coordinator.tapes import WALL, agent, start

EVENTS = (
    start(0),
    start(1),
    RanksStarted(0),
    StartFailed(0, "no such program"),
    RankExited(0, 0, 1),
    RanksGone(0),
    Told(StopRanks(0, 8.0)),
    Told(Farewell()),
    Disconnected("reset"),
    SignalCame(signal.SIGTERM),
    ShimLost(),
    Tick(),
)
LENGTH = 4


def history(events: tuple[Any, ...]) -> list[Any]:
    """Return events and actions in one list. Each event comes 3 s after the previous one."""
    machine = agent(processes=1).machine
    all_of_it: list[Any] = []
    for number, event in enumerate(events):
        now = Now(1.0 + 3.0 * number, WALL)
        all_of_it.append(event)
        all_of_it += machine.on(now, event)
        assert not (type(event) is Tick and (machine.wakes_at() or 1e9) <= now.steady), "it spins"
    return all_of_it


def objection(events: list[Any]) -> str:
    """Return the law that a history breaks."""
    spawned = [event.epoch for event in events if isinstance(event, StartRanks)]
    if spawned != sorted(set(spawned)):
        return "an epoch starts twice, or after a later one"
    ends = [place for place, event in enumerate(events) if isinstance(event, Exit)]
    if ends and any(isinstance(event, (Tell, Sweep, StartRanks, Exit)) for event in events[ends[0] + 1 :]):
        return "something is done after the end"
    swept = started = False
    for event in events:
        started = started or isinstance(event, StartRanks)
        swept = (swept or isinstance(event, RanksGone)) and not isinstance(event, StartRanks)
        ended = isinstance(event, Tell) and isinstance(event.message, RanksGone)
        if started and not swept and (isinstance(event, Exit) or (ended and event.message.epoch in spawned)):
            return "ranks are called gone, or left behind, without a sweep"
    return ""


def test_no_order_of_events_breaks_a_law_of_the_agent() -> None:
    broken = {}
    for order in itertools.product(EVENTS, repeat=LENGTH):
        events = history((start(0), *order))
        if result := objection(events):
            broken[result] = events
    assert broken == {}
