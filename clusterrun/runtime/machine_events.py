"""Events, actions and times that the state machines of agent and coordinator share; pure."""

from __future__ import annotations

from clusterrun.model.frozen import frozen


@frozen
class Now:
    """One reading of both clocks, in seconds: ``steady`` for every decision, ``wall`` for records only."""

    steady: float
    wall: float


def earliest(*times: float | None) -> float | None:
    """The first of several times, of which some are not set."""
    return min((at for at in times if at is not None), default=None)


class Event:
    """What can happen to a machine."""


class Action:
    """What a machine orders to be done; carried out in the order in which they come."""


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
