"""Growing log files, looked at again and again, as works on any shared file system; judges no run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from clusterrun.logs.files import LogFile, end_of_lines, in_order, log_files, size_of, tail_start
from clusterrun.logs.merge import LINE_LIMIT, Piece, whole_lines
from clusterrun.logs.selection import Selection
from clusterrun.system import Clock

PORTION = 1 << 20
LOOK_EVERY = 0.2
PARTIAL_SECONDS = 3.0
"""How long an unfinished line may lie unchanged, or a progress bar move, before it is shown as it is."""


class Growing:
    """One file being followed: how far it was shown, and the line it has begun."""

    def __init__(self, file: LogFile, offset: int, exact: bool = False) -> None:
        """With ``exact`` every byte is shown as it comes, else whole lines."""
        self.file = file
        self._exact = exact
        self._offset = offset
        self._inode = 0
        self._rest = b""
        self._changed_at = 0.0
        self._early = b""
        self._early_at = 0.0

    def new(self, now: float) -> bytes:
        """The lines that came since last time; ``now`` is steady seconds."""
        data = self._read()
        if self._exact:
            return data
        whole, rest = whole_lines(self._rest + data)
        self._rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]  # a bar's older states are written over
        if data:
            self._changed_at = now
        return whole + (self._bar(now) if b"\r" in self._rest else self._half_line(now))

    def last(self) -> bytes:
        """What is left at the end: a line that was never finished."""
        rest, self._rest = self._rest, b""
        return rest if rest != self._early else b""

    def _half_line(self, now: float) -> bytes:
        if not self._rest or (len(self._rest) <= LINE_LIMIT and now - self._changed_at < PARTIAL_SECONDS):
            return b""
        shown, self._rest = self._rest, b""
        return shown

    def _bar(self, now: float) -> bytes:
        if self._rest == self._early or now - self._early_at < PARTIAL_SECONDS:
            return b""
        self._early, self._early_at = self._rest, now
        return self._rest

    def _read(self) -> bytes:
        try:
            handle = os.open(self.file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            found = os.fstat(handle)
            if found.st_size < self._offset or self._inode not in (0, found.st_ino):
                self._offset, self._rest = 0, b""  # truncated or replaced: another file from its start
            self._inode = found.st_ino
            data = os.pread(handle, PORTION, self._offset) if found.st_size > self._offset else b""
        finally:
            os.close(handle)
        self._offset += len(data)
        return data


class Follower:
    """All wanted files of one attempt."""

    def __init__(self, folder: str, selection: Selection, clock: Clock, exact: bool = False) -> None:
        self._folder = folder
        self._exact = exact
        self._selection = selection
        self._clock = clock
        self._files: dict[str, Growing] = {}

    def so_far(self, tail: int | None) -> Iterator[Piece]:
        """What is there already, merged by time; following goes on behind it."""
        files = log_files(self._folder, self._selection)
        sizes = [size_of(file.path) for file in files]
        ends = [end_of_lines(file.path, size) for file, size in zip(files, sizes, strict=True)]
        for file, end in zip(files, ends, strict=True):
            self._files[file.path] = Growing(file, end, self._exact)
        return in_order(self._folder, files, spans(files, ends, tail))

    def new(self) -> list[Piece]:
        """What came since last time, by rank."""
        for file in log_files(self._folder, self._selection):
            if file.path not in self._files:
                self._files[file.path] = Growing(file, 0, self._exact)
        now, wall = self._clock.monotonic(), self._clock.now()
        return self._pieces(wall, lambda growing: growing.new(now))

    def last(self) -> list[Piece]:
        """All that is left once nobody writes any more."""
        found = self.new()
        while more := self.new():
            found += more
        return found + self._pieces(self._clock.now(), Growing.last)

    def _pieces(self, wall: float, take: Callable[[Growing], bytes]) -> list[Piece]:
        found = []
        for growing in self._files.values():
            data = take(growing)
            if data:
                found.append(Piece(wall, growing.file.rank, growing.file.stream, data))
        return sorted(found)


def spans(files: list[LogFile], ends: list[int], tail: int | None) -> list[tuple[int, int]]:
    """From where to where each file is to be shown: whole, or its last ``tail`` lines."""
    if tail is None:
        return [(0, end) for end in ends]
    return [(tail_start(file.path, end, tail), end) for file, end in zip(files, ends, strict=True)]
