"""Connections as TCP gives them: ordered, but delayed, cut, healed or reset; knows no message."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from .clockwork import Clockwork

UP, DOWN = 0, 1
"""Directions: agent to coordinator, coordinator to agent."""


class Closed:
    """The event that the other end or the network closed the connection."""

    def __init__(self, why: str) -> None:
        self.why = why


class Link:
    """One connection; ``deliver(link, direction, payload)`` is called where something arrives."""

    def __init__(
        self,
        number: int,
        clock: Clockwork,
        chance: random.Random,
        delay: Callable[[], float],
        deliver: Callable[[Link, int, Any], None],
    ) -> None:
        self.number = number
        self.cut = [False, False]
        self._open = [True, True]
        self._queues: list[deque[tuple[float, Any]]] = [deque(), deque()]
        self._pumping = [False, False]
        self._clock = clock
        self._chance = chance
        self._delay = delay
        self._deliver = deliver
        self.past: list[list[Any]] = [[], []]

    def send(self, way: int, payload: Any) -> None:
        """Send a payload. It arrives after everything sent before."""
        if self._open[1 - way]:
            self._queues[way].append((self._clock.now + self._delay(), payload))
            self._start(way)

    def receives(self, way: int) -> bool:
        """Return whether the end at ``way`` still listens."""
        return self._open[way]

    def close(self, way: int, why: str) -> None:
        """Close the end at ``way``. The other end is notified after all earlier messages."""
        if self._open[way]:
            self.send(1 - way, Closed(why))
            self._open[way] = False

    def vanish(self, way: int) -> None:
        """Remove the end at ``way`` without notice, as a power cut does."""
        self._open[way] = False

    def reset(self) -> None:
        """End the connection in the network.

        Messages under way are lost; both ends are notified at some time.
        """
        for way in (UP, DOWN):
            self._queues[way].clear()
            self._queues[way].append((self._clock.now + self._delay(), Closed("reset by the network")))
            self._start(way)

    def sever(self, way: int, patience: float) -> None:
        """Cut one direction; after ``patience`` seconds the end that waits for answers gives up."""
        if not self.cut[way]:
            self.cut[way] = True
            self._clock.after(patience, self._give_up, way)

    def heal(self) -> None:
        """Repair both directions. Delayed messages are delivered."""
        for way in (UP, DOWN):
            self.cut[way] = False
            self._start(way)

    def _give_up(self, way: int) -> None:
        # The sender of a cut direction gets no acknowledgements: its kernel ends the connection.
        if self.cut[way] and self._open[1 - way]:
            self._arrive(1 - way, Closed("timed out"))

    def _start(self, way: int) -> None:
        if not self._pumping[way] and self._queues[way] and not self.cut[way]:
            self._pumping[way] = True
            self._clock.at(self._queues[way][0][0], self._driver, way)

    def _driver(self, way: int) -> None:
        self._pumping[way] = False
        if self.cut[way] or not self._queues[way]:
            return
        if self._queues[way][0][0] <= self._clock.now:
            self._arrive(way, self._queues[way].popleft()[1])
        self._start(way)

    def _arrive(self, way: int, payload: Any) -> None:
        if not self._open[way]:
            return
        if isinstance(payload, Closed):
            self._open[way] = False
            self._queues[way].clear()
        else:
            self.past[way].append(payload)
        self._deliver(self, way, payload)

    def repeat(self, way: int) -> None:
        """Deliver an earlier message again, as if nothing numbered the frames."""
        if self._open[way] and not self.cut[way] and len(self.past[way]) > 1:
            self._deliver(self, way, self._chance.choice(self.past[way][1:]))
