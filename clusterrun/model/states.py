"""Define the states and phases of a run, and which of them are final."""

from __future__ import annotations

import enum


class Word(str, enum.Enum):
    """A value that is equal to its word, and printed as that word alone."""

    def __str__(self) -> str:
        return str.__str__(self)


class State(Word):
    """The state of a run as users see it. ``UNKNOWN`` never means ended."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"

    @property
    def ended(self) -> bool:
        """Return whether the run is over in this state."""
        return self not in (State.PENDING, State.RUNNING, State.UNKNOWN)


class Phase(Word):
    """How far a live run is."""

    QUEUED = "queued"
    STARTING = "starting"
    PREFLIGHT = "preflight"
    TRAINING = "training"
    RESTARTING = "restarting"
    ENDED = "ended"
