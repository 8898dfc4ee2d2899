"""Decide whether an expired limit proves anything, from the times in which a machine was overloaded; pure.

This is the only rule for limits on an overloaded machine. A limit gets more time, up to ``OVERLOAD_FACTOR``
times its length, if its machine was overloaded while it ran. If that is not enough, the verdict is
undetermined.
"""

from __future__ import annotations

from clusterrun.model import contract

# Seconds. A machine reports its overload with its heartbeat, so that an overload lasts at least until the
# next one.
REPORT_SECONDS = contract.HEARTBEAT_SECONDS
# An older overload concerns no limit that still runs.
_MOST_SPANS = 100


class Overloads:
    """The times in which one machine was overloaded, in seconds of a steady clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def add(self, now: float, seconds: float) -> None:
        """Record that the machine was overloaded for the last ``seconds``."""
        begin, end = now - seconds, now + REPORT_SECONDS
        if self._spans and begin <= self._spans[-1][1]:
            begin = self._spans.pop()[0]
        self._spans = [*self._spans[1 - _MOST_SPANS :], (begin, end)]

    def excuse(self, since: float, now: float) -> bool:
        """Return whether a wait from ``since`` to ``now`` took so long because of the machine's overload."""
        overlaps = (min(end, now) - max(begin, since) for begin, end in self._spans)
        return now > since and is_excused(sum(overlap for overlap in overlaps if overlap > 0), now - since)

    def extend(self, since: float, limit: float, now: float) -> bool:
        """Return whether a limit of ``limit`` seconds that began at ``since`` gets more time at ``now``."""
        return now < since + (1 + contract.OVERLOAD_FACTOR) * limit and self.excuse(since, now)


def is_excused(overloaded: float, waited: float) -> bool:
    """Return whether a wait of ``waited`` seconds proves nothing, ``overloaded`` of them with overload."""
    return overloaded >= contract.OVERLOAD_SHARE * waited
