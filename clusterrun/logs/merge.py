"""The lines of many ranks as one stream in time order, as far as the index of their node tells; pure.

An index line ``WALL RANK STREAM SIZE`` says that at WALL (seconds) the file had SIZE bytes. What came
since the line before is taken to have come evenly; after a silence, within the last second before
it was seen, for an agent looks at least once a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import NamedTuple

LINE_LIMIT = 1 << 16
"""A line longer than this is shown in parts: a rank may write gigabytes without an end of line."""


class Piece(NamedTuple):
    """Lines that one rank wrote at about one time; the last may lack its end. Sorts by time, rank, stream."""

    at: float
    rank: int
    stream: str
    data: bytes


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """``data`` up to its last end of line, and what follows."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


LOOKS_EVERY = 1.0
TICK = 0.1
"""Lines of one rank within this many seconds stay together: finer than the index can know."""

Key = tuple[int, str]
"""A rank, and ``out`` or ``err``."""
_STREAMS = {"o": "out", "e": "err"}


def looks(lines: Iterable[str]) -> Iterator[tuple[float, dict[Key, int]]]:
    """Each look of an agent: when, and how large the files were that had grown. Times never go back."""
    wall, sizes = 0.0, dict[Key, int]()
    for line in lines:
        try:
            moment, rank, stream, size = line.split()
            at, key, grown = float(moment), (int(rank), _STREAMS[stream]), int(size)
        except (ValueError, KeyError):
            continue
        if at > wall and sizes:
            yield wall, sizes
            sizes = {}
        wall = max(wall, at)
        sizes[key] = grown
    if sizes:
        yield wall, sizes


def began(wall: float, before: float | None) -> float:
    """Since when bytes came that were seen at ``wall``, where the look that found any was at ``before``."""
    if before is None or wall - before > 1.5 * LOOKS_EVERY:
        return wall - LOOKS_EVERY
    return before


def spread(data: bytes, carried: int, since: float, wall: float) -> tuple[list[tuple[float, bytes]], bytes]:
    """The whole lines in ``data`` with their times, in ticks, and the unfinished rest.

    Of ``data`` the first ``carried`` bytes were there at ``since``, the rest came evenly until
    ``wall``. The time of a line is that of its end.
    """
    parts = max(1, ceil((wall - since) / TICK - 1e-6))
    timed_lines, start, new = [], 0, len(data) - carried
    for part in range(1, parts + 1):
        end = data.rfind(b"\n", start, carried + part * new // parts) + 1
        if end > start:
            timed_lines.append((since + (wall - since) * part / parts, data[start:end]))
            start = end
    return timed_lines, data[start:]
