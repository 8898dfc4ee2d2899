"""Events, actions and times that the state machines of agent and coordinator share; pure."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

# An event that is later than the due time by more than this shows that the process was suspended.
OVERSLEPT_SECONDS = 1.0


@frozen
class Now:
    """One reading of both clocks, in seconds: ``steady`` for every decision, ``wall`` for records only."""

    steady: float
    wall: float


def earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


class Event:
    """An event for a state machine."""


class Action:
    """An order of a state machine. Actions are carried out in order."""


@frozen
class StoodStill(Event):
    """This process was suspended for ``seconds``, alone or with its whole job (``scontrol suspend``).

    This event precedes all others that arrived meanwhile.
    """

    seconds: float


@frozen
class SignalCame(Event):
    """This process got a signal (by number)."""

    number: int


@frozen
class Tick(Event):
    """Time passed. The event is sent at start and whenever ``wakes_at`` of a machine is reached."""


@frozen
class Note(Action):
    """A line for the machine's log."""

    text: str


class Standstill:
    """Detects that this process was stopped, or that its machine slept.

    ``due`` is when the next event is due (steady clock), None if none is.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._seen: float | None = None

    def seconds(self, now: float) -> float:
        """Return how long the process was suspended before this event, 0 if it was not."""
        last, self._seen = self._seen, now
        if last is None or self.due is None or now - max(self.due, last) <= OVERSLEPT_SECONDS:
            return 0.0
        return now - last
