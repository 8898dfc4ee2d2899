"""Feed a state machine with events, one after the other, and yield its actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from clusterrun.model.frozen import Any
from clusterrun.runtime import machine_events
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.machine_events import Standstill


class MachineDriver:
    """Drives one state machine. ``now`` reads the clocks. ``exit_code`` is set by ``end``.

    ``woke`` is called after this process was suspended, before the machine gets any event.
    """

    def __init__(self, loop: EventLoop, machine: Any, now: Callable[[], machine_events.Now]) -> None:
        self.woke: Callable[[], object] = int
        self._standstill = Standstill()
        self._loop, self._machine, self._now = loop, machine, now
        self._waiting: deque[Any] = deque()
        self.exit_code: int | None = None

    def happened(self, *events: Any) -> None:
        self._waiting.extend(events)

    def first_of_all(self, event: Any) -> None:
        self._waiting.appendleft(event)

    def end(self, code: int) -> None:
        """End the loop with ``code``. The machine gets no further event."""
        self.exit_code = code

    def actions(self) -> Iterator[Any]:
        """Yield actions until ``end`` is called; each is carried out before the next."""
        while self.exit_code is None:
            while self._waiting and self.exit_code is None:
                now = self._now()
                if seconds := self._standstill.seconds(now.steady):
                    self.woke()
                    self.first_of_all(machine_events.StoodStill(seconds))
                yield from self._machine.on(now, self._waiting.popleft())
            if self.exit_code is None:
                self._standstill.due = self._machine.wakes_at()
                self._loop.wait(self._standstill.due)
                wakes_at = self._machine.wakes_at()
                if not self._waiting and wakes_at is not None and wakes_at <= steady():
                    self.happened(machine_events.Tick())
