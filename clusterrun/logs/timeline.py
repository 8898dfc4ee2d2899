"""When the bytes of a log file were written, as far as the index of its node tells; pure.

An index line ``WALL RANK STREAM SIZE`` says that at WALL (seconds) the file had SIZE bytes. Between
two of them bytes are taken to have come evenly; after a silence, within the last second before
they were seen, for an agent looks at least once a second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import ceil

LOOKS_EVERY = 1.0
TICK = 0.1
"""Lines of one rank within this many seconds stay together: finer than the index can know."""

Key = tuple[int, str]


class Timeline:
    """The times of one file; offsets are bytes from its start."""

    def __init__(self, knots: Iterable[tuple[float, int]] = (), after: float = 0.0) -> None:
        """``knots`` are (wall, size) in the order written; ``after`` is the time of bytes beyond the last."""
        self._walls: list[float] = []
        self._sizes: list[int] = []
        for wall, size in knots:
            if not self._sizes or size > self._sizes[-1]:
                self._walls.append(max(wall, self._walls[-1] if self._walls else wall))
                self._sizes.append(size)
        self._after = max(after, self._walls[-1] if self._walls else after)

    def tick(self, offset: int) -> tuple[float, int | None]:
        """The time of the byte at ``offset``, and the first offset of a later tick (None: there is none)."""
        place = bisect_right(self._sizes, offset)
        if place == len(self._sizes):
            return self._after, None
        end, size = self._walls[place], self._sizes[place]
        before, base = (self._walls[place - 1], self._sizes[place - 1]) if place else (end - LOOKS_EVERY, 0)
        began = before if end - before <= 1.5 * LOOKS_EVERY else end - LOOKS_EVERY
        parts = max(1, ceil((end - began) / TICK))
        part = -(-(offset + 1 - base) * parts // (size - base))
        return began + (end - began) * part / parts, base + part * (size - base) // parts


def read_index(lines: Iterable[str]) -> dict[Key, list[tuple[float, int]]]:
    """The knots of each (rank, ``out`` or ``err``) in an index; a damaged or half line is passed over."""
    knots: dict[Key, list[tuple[float, int]]] = {}
    for line in lines:
        try:
            wall, rank, stream, size = line.split()
            key = (int(rank), {"o": "out", "e": "err"}[stream])
            knots.setdefault(key, []).append((float(wall), int(size)))
        except (ValueError, KeyError):
            continue
    return knots
