"""Events, actions and times that the state machines of agent and coordinator share; pure."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

OVERSLEPT_SECONDS = 1.0
"""An event that much later than something was due says that the process stood still."""


@frozen
class Now:
    """One reading of both clocks, in seconds: ``steady`` for every decision, ``wall`` for records only."""

    steady: float
    wall: float


def earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


class Event:
    """What can happen to a machine."""


class Action:
    """What a machine wants done; actions are carried out in order."""


@frozen
class StoodStill(Event):
    """This process did nothing for so long, be it alone or with its whole job (``scontrol suspend``).

    Comes before all else that happened meanwhile.
    """

    seconds: float


@frozen
class SignalCame(Event):
    """This process got a signal (by number)."""

    number: int


@frozen
class Tick(Event):
    """Time passed; sent whenever ``wakes_at`` of a machine is reached, and at start."""


@frozen
class Note(Action):
    """A line for the log of whoever says it."""

    text: str


class Standstill:
    """Finds out that a process did nothing for a while: it was stopped, or its machine slept.

    ``due`` is when something must be shown to it (steady clock), None if nothing needs to be.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._seen: float | None = None

    def seconds(self, now: float) -> float:
        """How long the process was suspended before this event, 0 if it was not."""
        seen, self._seen = self._seen, now
        if seen is None or self.due is None or now - max(self.due, seen) <= OVERSLEPT_SECONDS:
            return 0.0
        return now - seen
