"""Feeds a state machine with events, one after the other, and carries its actions out."""

from __future__ import annotations

from collections import deque

from clusterrun.runtime import machine_events
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.standstill import Standstill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from clusterrun.runtime.event_loop import EventLoop


class MachineDriver:
    """``does`` maps a kind of action to what carries it out, ``now`` reads the clocks.

    ``woke`` is called when this process stood still, before the machine is shown anything.
    """

    def __init__(self, loop: EventLoop, machine: Any, now: Callable[[], machine_events.Now]) -> None:
        self.does: dict[type, Callable[[Any], object]] = {}
        self.woke: Callable[[], object] = int
        self._standstill = Standstill()
        self._loop = loop
        self._machine = machine
        self._now = now
        self._waiting: deque[Any] = deque()
        self._exit: int | None = None

    def happened(self, event: Any) -> None:
        """It is shown to the machine after all that happened before."""
        self._waiting.append(event)

    def all_happened(self, several: Iterable[Any]) -> None:
        """As ``happened``, in this order."""
        self._waiting.extend(several)

    def first_of_all(self, event: Any) -> None:
        """It is shown before all else that waits."""
        self._waiting.appendleft(event)

    def end(self, code: int) -> None:
        """``run`` returns ``code`` after the action that is being carried out."""
        self._exit = code

    def run(self) -> int:
        """Serve until somebody says ``end``; the exit code."""
        while self._exit is None:
            self._work()
            if self._exit is None:
                self._standstill.due = self._machine.wakes_at()
                self._loop.wait(self._standstill.due)
                self._tick()
        return self._exit

    def _tick(self) -> None:
        wakes_at = self._machine.wakes_at()
        if not self._waiting and wakes_at is not None and wakes_at <= steady():
            self.happened(machine_events.Tick())

    def _work(self) -> None:
        """Actions are carried out before the next event."""
        while self._waiting and self._exit is None:
            now = self._now()
            if seconds := self._standstill.seconds(now.steady):
                self.woke()
                self.first_of_all(machine_events.StoodStill(seconds))
            for action in self._machine.on(now, self._waiting.popleft()):
                self.does[type(action)](action)
