"""Finds out that a process was stopped, or its machine slept, from when it was next shown something; pure."""

from __future__ import annotations

OVERSLEPT_SECONDS = 1.0
"""An event that much later than something was due says that the process stood still."""


class Standstill:
    """Finds out that a process did nothing for a while: it was stopped, or its machine slept.

    ``due`` is when something must be shown to it (steady clock), None where nothing needs to be.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._seen: float | None = None

    def seconds(self, now: float) -> float:
        """Something is shown to it now: for how long it stood still before, 0 where it did not."""
        seen, self._seen = self._seen, now
        if seen is None or self.due is None or now - max(self.due, seen) <= OVERSLEPT_SECONDS:
            return 0.0
        return now - seen
