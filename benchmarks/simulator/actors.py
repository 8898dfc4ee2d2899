"""A process around a machine: it is fed, it freezes, it dies; knows neither kind of machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterrun.runtime import machine_events
from clusterrun.runtime.machine_events import Standstill

from .kernel import Node

if TYPE_CHECKING:
    from .world import World


class Actor:
    """A process around a machine: one event at a time, never while it is frozen, nothing after its death."""

    def __init__(self, world: World, name: str, node: Node, machine: Any) -> None:
        self.world = world
        self.name = name
        self.node = node
        self.machine = machine
        self.alive = True
        self.frozen = False
        self.woken_at = float("-inf")
        self._standstill = Standstill()
        self._inbox: list[Any] = []
        self._wake_at: float | None = None

    def reading(self) -> machine_events.Now:
        """Return the clocks of this process."""
        now = self.world.clock.now
        return machine_events.Now(now + self.node.offset, now + self.world.wall)

    def feed(self, event: Any) -> None:
        """Give the machine an event. A callable is work of the process itself that was under way."""
        if not self.alive:
            return
        if self.frozen or self.node.frozen:
            self._inbox.append(event)
        elif callable(event):
            event()
        else:
            self._step(event)

    def feed_later(self, seconds: float, work: Any) -> None:
        """Do ``work`` in this process in ``seconds``."""
        self.world.clock.after(seconds, self.feed, work)

    def _step(self, event: Any) -> None:
        now = self.reading()
        if seconds := self._standstill.seconds(now.steady):
            self._step(machine_events.StoodStill(seconds))
            self.woke()
            if not self.alive:
                return
        self._show(event, now)

    def _show(self, event: Any, now: machine_events.Now) -> None:
        """Let the machine answer, and carry its actions out."""
        try:
            actions = self.machine.on(now, event)
            wakes_at = self.machine.wakes_at()
        except Exception as error:  # noqa: BLE001  (law: a machine never raises)
            self.world.watch.fail(f"{self.name} raised {error!r} at {event!r}")
            self.die("an exception")
            return
        if type(event) is machine_events.Tick and wakes_at is not None and wakes_at <= now.steady:
            self.world.watch.fail(f"{self.name} wants to be woken at once, again and again")
        self.world.log_step(self, event, actions)
        for action in actions:
            if not self.alive:
                return
            self.carry_out(action)
        self._plan_wake(wakes_at)

    def woke(self) -> None:
        """Do what the runtime does first after a suspension."""

    def _plan_wake(self, wakes_at: float | None) -> None:
        self._standstill.due = wakes_at
        if wakes_at is None or not self.alive:
            return
        when = max(wakes_at - self.node.offset, self.world.clock.now)
        if self._wake_at is None or when < self._wake_at:
            self._wake_at = when
            self.world.clock.at(when + 1e-6, self._wake, when)

    def _wake(self, when: float) -> None:
        if self._wake_at == when:
            self._wake_at = None
            self.feed(machine_events.Tick())

    def wake_up(self) -> None:
        """Continue the process. It reads what arrived; its timers fire before or after that."""
        if self.frozen or self.node.frozen:
            return
        self.woken_at = self.world.clock.now
        waiting, self._inbox = self._inbox, []
        if self.world.fault_chance.random() < 0.5:
            waiting = [e for e in waiting if isinstance(e, machine_events.Tick)] + [
                e for e in waiting if not isinstance(e, machine_events.Tick)
            ]
        for event in waiting:
            self.feed(event)

    def freeze(self, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT after ``seconds`` (or when everything is healed)."""
        if self.alive:
            self.frozen = True
            self.world.log(f"{self.name} is frozen")
            self.world.clock.at(min(self.world.clock.now + seconds, self.world.scenario.heal_at), self.thaw)

    def thaw(self) -> None:
        """Send SIGCONT."""
        if self.frozen:
            self.frozen = False
            self.wake_up()

    def carry_out(self, action: Any) -> None:
        """Do what the machine orders."""
        raise NotImplementedError

    def die(self, why: str) -> None:
        """End the process and everything that depends on it."""
        raise NotImplementedError

    def vanish(self) -> None:
        """End the process as a power cut of its node does."""
        raise NotImplementedError
