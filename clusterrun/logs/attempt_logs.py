"""List the log files of an attempt, and read them in portions. Keeps no file open."""

from __future__ import annotations

import heapq
import os
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from clusterrun.logs.merge import LINE_LIMIT, Key, Piece, began, looks, order, spread
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen


@frozen
class LogSelection:
    """The requested logs."""

    ranks: frozenset[int] | None = None  # None: all
    stream: str = "both"  # or ``out``, or ``err``
    tail: int | None = None  # number of last lines of each stream of each rank; None: all lines
    attempt: int | None = None  # None: the newest attempt
    begin: float = 0.0  # only files that have grown since, in seconds since the epoch; 0: all
    exact: bool = False  # every byte as it arrives, also older states of a progress bar; else whole lines

    def wants(self, rank: int, stream: str) -> bool:
        return self.stream in ("both", stream) and (self.ranks is None or rank in self.ranks)


def numbers(text: str, below: int, what: str) -> frozenset[int]:
    """Return the numbers in ``0,3-5``.

    Raises ``BadInput`` for any other text, or a number not below ``below``.
    """
    selected: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (text.isascii() and first.isdecimal() and (last.isdecimal() or not dash)):
            raise BadInput(f"{text!r} is not a list of {what}s", f"write for example --{what} 0,3-5")
        low, high = int(first), int(last or first)
        if high >= below or low > high:
            raise BadInput(f"there is no {what} {part.strip()}", f"the run has {what}s 0 to {below - 1}")
        selected.update(range(low, high + 1))
    return frozenset(selected)


_LOG = re.compile(r"(\d{5,})\.(out|err)")
_INDEX = re.compile(r"node-\d+\.index")
# Limit on the bytes of logs in memory, for all ranks together.
MEMORY = 32 << 20
CHUNK_BYTES = 1 << 18


class Unreadable(ClusterrunError):
    """A folder or file of logs that this user may not read."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not readable", f"as its owner: chmod u+rwX {shlex.quote(path)}")


class LogFile(NamedTuple):
    path: str
    rank: int
    stream: str


def log_files(folder: str, selection: LogSelection) -> list[LogFile]:
    """Return the selected files of an attempt by rank; none if its folder does not exist yet."""
    files = []
    for name in _names(folder):
        match = _LOG.fullmatch(name)
        if match and selection.wants(int(match[1]), match[2]):
            files.append(LogFile(os.path.join(folder, name), int(match[1]), match[2]))
    return sorted(files, key=lambda file: (file.rank, file.stream))


def attempts(folder: str) -> list[int]:
    """Return the numbers of the attempts, oldest first."""
    return sorted(int(name) for name in _names(folder) if name.isdecimal())


def readable(*folders: str) -> None:
    """Raise ``Unreadable`` for the first existing folder of ``folders`` that this user may not read."""
    for folder in folders:
        if os.path.lexists(folder) and not os.access(folder, os.R_OK | os.X_OK):
            raise Unreadable(folder)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise Unreadable(folder) from error


class LogReading:
    """The progress of merging one file: the offset, and the unfinished line."""

    __slots__ = ("end", "exact", "file", "looked", "position", "rest")

    def __init__(self, file: LogFile, start: int, end: int, exact: bool = False) -> None:
        """``exact`` keeps every byte, also older states of a progress bar."""
        self.file, self.position, self.end, self.exact = file, start, end, exact
        self.rest = b""
        self.looked: float | None = None

    def take(self, until: int) -> bytes:
        """Return the bytes from the current offset to ``until``."""
        size = min(until, self.end) - self.position
        data = read_at(self.file.path, self.position, size) if size > 0 else b""
        self.position += len(data)
        return data

    def pieces(self, data: bytes, since: float, wall: float) -> list[Piece]:
        """Return ``data`` as pieces, which arrived between two times.

        An unfinished line is held back for a while.
        """
        timed_lines, self.rest = spread(self.rest + data, len(self.rest), since, wall)
        if len(self.rest) > LINE_LIMIT and not self.exact:
            self.rest = standing(self.rest)
        if len(self.rest) > LINE_LIMIT:
            timed_lines.append((wall, self.rest))
            self.rest = b""
        return [Piece(at, self.file.rank, self.file.stream, part) for at, part in timed_lines]


def standing(line: bytes) -> bytes:
    """Return the visible part of an unfinished line: the newest state of a progress bar."""
    return line[max(0, line.rstrip(b"\r").rfind(b"\r")) :]


def in_order(
    folder: str, files: list[LogFile], spans: list[tuple[int, int]], exact: bool = False
) -> Iterator[Piece]:
    """Yield the content of ``files`` within ``spans`` by the time in the indexes.

    Content without a time comes last.
    """
    readings = {(file.rank, file.stream): LogReading(file, *span, exact) for file, span in zip(files, spans)}
    indexes = sorted(name for name in _names(folder) if _INDEX.fullmatch(name)) if readings else []
    share = max(1 << 16, MEMORY // max(len(indexes), 1))
    of_nodes = [_of_node(os.path.join(folder, name), readings, share) for name in indexes]
    yield from heapq.merge(*of_nodes, key=order)
    for reading in readings.values():
        while data := reading.take(reading.position + CHUNK_BYTES):
            yield from reading.pieces(data, 0.0, 0.0)
        if reading.rest:
            yield Piece(0.0, reading.file.rank, reading.file.stream, reading.rest)


def _of_node(index: str, readings: dict[Key, LogReading], share: int) -> Iterator[Piece]:
    for wall, sizes in looks(_lines(index)):
        grown = [(readings[key], size) for key, size in sizes.items() if key in readings]
        # The content is yielded in parts if it exceeds the memory limit.
        total = sum(max(0, min(size, reading.end) - reading.position) for reading, size in grown)
        parts = total // share + 1
        starts = [(reading, reading.position, size, began(wall, reading.looked)) for reading, size in grown]
        for part in range(1, parts + 1):
            pieces: list[Piece] = []
            for reading, start, size, since in starts:
                length, data = wall - since, reading.take(start + (size - start) * part // parts)
                before, then = since + length * (part - 1) / parts, since + length * part / parts
                pieces += reading.pieces(data, before, then) if data else []
                reading.looked = wall
            yield from sorted(pieces, key=order)


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a long file. It is open only while a portion is read."""
    rest, offset = b"", 0
    while data := read_at(path, offset, 1 << 12):
        offset += len(data)
        *whole_lines, rest = (rest + data).split(b"\n")
        yield from (line.decode("ascii", "replace") for line in whole_lines)


def opened(path: str) -> int | None:
    """Return a handle for reading a file; None if it is missing. Raises ``Unreadable``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise Unreadable(path) from error


def read_at(path: str, offset: int, size: int) -> bytes:
    """Return at most ``size`` bytes from ``offset``; none if the file is missing. Raises ``Unreadable``."""
    if (handle := opened(path)) is None:
        return b""
    try:
        return os.pread(handle, size, offset)
    finally:
        os.close(handle)


def size_of(path: str) -> int:
    """Return the current size of a file. Opening it asks the file server; a plain stat may use a cache."""
    if (handle := opened(path)) is None:
        return 0
    try:
        return os.fstat(handle).st_size
    finally:
        os.close(handle)


def written_at(path: str) -> float:
    """Return the time of the last write to a file, in seconds since the epoch; 0 if it is missing."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def end_of_lines(path: str, size: int) -> int:
    """Return the offset after the last end of line within ``size`` bytes; ``size`` if there is none."""
    start = max(0, size - (1 << 16))
    place = read_at(path, start, size - start).rfind(b"\n")
    if place >= 0:
        return start + place + 1
    return size if start else 0


def tail_start(path: str, size: int, lines: int) -> int:
    """Return the offset of the last ``lines`` lines within the first ``size`` bytes."""
    if lines == 0:
        return size
    start, missing_lines, first = size, lines, True
    while start > 0:
        portion = min(start, 8192 if first else 1 << 17)
        start -= portion
        data = read_at(path, start, portion)
        if first and data.endswith(b"\n"):
            missing_lines += 1
        first = False
        ends = data.count(b"\n")
        if ends >= missing_lines:
            return start + len(data) - len(data.split(b"\n", ends - missing_lines + 1)[-1])
        missing_lines -= ends
    return 0
