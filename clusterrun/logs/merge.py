"""The lines of many ranks as one stream in time order; pure: bytes with times in, pieces out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
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


def merged(sources: Iterable[Iterable[Piece]]) -> Iterator[Piece]:
    """All pieces by time; at equal times in the order of ranks, ``err`` before ``out``."""
    return heapq.merge(*sources)
