"""Which changes of a run its user is told of; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import Announce
from clusterrun.model.record import RunState
from clusterrun.model.states import Phase
from clusterrun.runtime.machine_events import Now

STARTED, RESTARTED, FAILED, ENDED = "started", "restarted", "failed", "ended"


class Notifications:
    """``news`` is asked after every event; each piece is told once."""

    def __init__(self) -> None:
        self._started = self._failed = -1
        self._ended = False

    def news(self, now: Now, state: RunState) -> list[Announce]:
        events = []
        if state.phase is Phase.TRAINING and self._started < state.epoch:
            self._started = state.epoch
            earlier = state.attempts[:-1]
            events.append(RESTARTED if any(attempt.nodes for attempt in earlier) else STARTED)
        newest = state.attempts[-1] if state.attempts else None
        if newest and newest.failure and newest.outcome and self._failed < newest.epoch:
            self._failed = newest.epoch
            events.append(FAILED)
        if state.state.ended and not self._ended:
            self._ended = True
            events.append(ENDED)
        return [Announce(event, state, now.wall) for event in events]
