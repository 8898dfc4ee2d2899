"""Merge the lines of many ranks by time, as far as the index of their node tells.

An index line ``WALL RANK STREAM SIZE`` says that at WALL (seconds) the file had SIZE bytes. Bytes between
two index lines are assumed to arrive evenly. After a silence they arrived within the last second, because
an agent looks at least once a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import NamedTuple

# A longer line is shown in parts. A rank may write gigabytes without an end of line.
LINE_LIMIT = 1 << 16


class Piece(NamedTuple):
    """Lines that one rank wrote at about one time.

    The last may lack its end.
    """

    at: float
    rank: int
    stream: str
    data: bytes


def order(piece: Piece) -> tuple[float, int, bool]:
    """Return what pieces are sorted by. An error of a moment comes after the output before it."""
    return piece.at, piece.rank, piece.stream == "err"


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """Return ``data`` up to its last end of line, and the rest."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


LOOKS_EVERY = 1.0
# Seconds within which lines of one rank stay together. The index is no finer.
TICK = 0.1

# A rank, and ``out`` or ``err``.
Key = tuple[int, str]
_STREAMS = {"o": "out", "e": "err"}


def looks(lines: Iterable[str]) -> Iterator[tuple[float, dict[Key, int]]]:
    """Yield the looks of an agent: the time, and the sizes of the files that had grown.

    Times never decrease.
    """
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
    """Return the earliest time of bytes that were seen at ``wall``.

    ``before``: time of the last look with bytes.
    """
    if before is None or wall - before > 1.5 * LOOKS_EVERY:
        return wall - LOOKS_EVERY
    return before


def spread(data: bytes, carried: int, since: float, wall: float) -> tuple[list[tuple[float, bytes]], bytes]:
    """Return the whole lines in ``data`` with their times, in ticks, and the unfinished rest.

    The first ``carried`` bytes of ``data`` existed at ``since``. The rest arrived evenly until ``wall``. A
    line's time is the time of its end.
    """
    parts = max(1, ceil((wall - since) / TICK - 1e-6))
    timed_lines, start, new = [], 0, len(data) - carried
    for part in range(1, parts + 1):
        end = data.rfind(b"\n", start, carried + part * new // parts) + 1
        if end > start:
            timed_lines.append((since + (wall - since) * part / parts, data[start:end]))
            start = end
    return timed_lines, data[start:]
