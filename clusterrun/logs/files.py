"""The log files of one attempt: which there are, and their content in portions; never holds one open."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from clusterrun.logs.merge import Piece, merged, pieces
from clusterrun.logs.selection import Selection
from clusterrun.logs.timeline import Key, Timeline, read_index
from clusterrun.model.frozen import frozen

_LOG = re.compile(r"(\d{5,})\.(out|err)")
_INDEX = re.compile(r"node-\d+\.index")
MEMORY = 32 << 20
"""Bytes that all portions held at once may take together, however many ranks."""


@frozen
class LogFile:
    """One stream of one rank."""

    path: str
    rank: int
    stream: str


def log_files(folder: str, selection: Selection) -> list[LogFile]:
    """The wanted files of an attempt, by rank; none where the folder is not there yet."""
    found = []
    for name in _names(folder):
        match = _LOG.fullmatch(name)
        if match and selection.wants(int(match[1]), match[2]):
            found.append(LogFile(os.path.join(folder, name), int(match[1]), match[2]))
    return sorted(found, key=lambda file: (file.rank, file.stream))


def attempts(folder: str) -> list[int]:
    """The numbers of the attempts there are, oldest first."""
    return sorted(int(name) for name in _names(folder) if name.isdecimal())


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def in_order(folder: str, files: list[LogFile], spans: list[tuple[int, int]]) -> Iterator[Piece]:
    """What ``files`` hold between the offsets of ``spans``, all ranks merged by time."""
    knots = _knots(folder)
    latest = max((walls[-1][0] for walls in knots.values()), default=0.0)
    portion = max(2048, min(1 << 18, MEMORY // max(len(files), 1)))
    return merged(
        pieces(
            portions(file.path, *span, portion),
            Timeline(knots.get((file.rank, file.stream), ()), latest),
            file.rank,
            file.stream,
            span[0],
        )
        for file, span in zip(files, spans, strict=True)
    )


def _knots(folder: str) -> dict[Key, list[tuple[float, int]]]:
    knots: dict[Key, list[tuple[float, int]]] = {}
    for name in _names(folder):
        if _INDEX.fullmatch(name):
            with open(os.path.join(folder, name), encoding="ascii", errors="replace") as index:
                knots.update(read_index(index))
    return knots


def portions(path: str, start: int, end: int, size: int) -> Iterator[bytes]:
    """The bytes of ``path`` from ``start`` to ``end``, ``size`` at a time; ends early where the file does."""
    while start < end:
        data = read_at(path, start, min(size, end - start))
        if not data:
            return
        yield data
        start += len(data)


def read_at(path: str, offset: int, size: int) -> bytes:
    """At most ``size`` bytes from ``offset``; nothing where the file is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(handle, size, offset)
    finally:
        os.close(handle)


def size_of(path: str) -> int:
    """The size of a file as its server knows it now (opening asks the server, a bare stat may not)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def end_of_lines(path: str, size: int) -> int:
    """The offset after the last end of line within ``size`` bytes; ``size`` where a line is endless."""
    start = max(0, size - (1 << 16))
    place = read_at(path, start, size - start).rfind(b"\n")
    if place >= 0:
        return start + place + 1
    return size if start else 0


def tail_start(path: str, size: int, lines: int) -> int:
    """The offset from which the last ``lines`` lines of the first ``size`` bytes begin."""
    if lines == 0:
        return size
    start, wanted, first = size, lines, True
    while start > 0:
        portion = min(start, 8192 if first else 1 << 17)
        start -= portion
        data = read_at(path, start, portion)
        if first and data.endswith(b"\n"):
            wanted += 1
        first = False
        ends = data.count(b"\n")
        if ends >= wanted:
            return start + _place_of(data, ends - wanted) + 1
        wanted -= ends
    return 0


def _place_of(data: bytes, number: int) -> int:
    place = -1
    for _ in range(number + 1):
        place = data.find(b"\n", place + 1)
    return place
