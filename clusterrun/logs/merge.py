"""The lines of many ranks as one stream in time order; pure: bytes with times in, pieces out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clusterrun.logs.timeline import Timeline

LINE_LIMIT = 1 << 16
"""A line longer than this is shown in parts: a rank may write gigabytes without an end of line."""


class Piece(NamedTuple):
    """Lines that one rank wrote at about one time; the last may lack its end. Sorts by time, rank, stream."""

    at: float
    rank: int
    stream: str
    data: bytes


def pieces(
    chunks: Iterable[bytes], timeline: Timeline, rank: int, stream: str, offset: int = 0
) -> Iterator[Piece]:
    """``chunks`` (in order, from ``offset`` of the file on) as pieces; the last line may be unfinished."""
    rest = b""
    for chunk in chunks:
        whole, rest = whole_lines(rest + chunk)
        if len(rest) > LINE_LIMIT:
            whole, rest = whole + rest, b""
        for at, data in _cut(whole, offset, timeline):
            yield Piece(at, rank, stream, data)
        offset += len(whole)
    if rest:
        yield Piece(timeline.tick(offset)[0], rank, stream, rest)


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """``data`` up to its last end of line, and what follows."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _cut(data: bytes, offset: int, timeline: Timeline) -> Iterator[tuple[float, bytes]]:
    start = 0
    while start < len(data):
        at, limit = timeline.tick(offset + start)
        end = len(data) if limit is None else data.rfind(b"\n", start, limit - offset) + 1
        if end <= start:  # the line goes on into a later tick: its time is that of its end
            end = data.find(b"\n", start) + 1 or len(data)
            at = timeline.tick(offset + end - 1)[0]
        yield at, data[start:end]
        start = end


def merged(sources: Iterable[Iterator[Piece]]) -> Iterator[Piece]:
    """All pieces by time; at equal times in the order of ranks, ``err`` before ``out``."""
    return heapq.merge(*sources)
