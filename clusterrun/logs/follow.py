"""Growing log files, looked at again and again, as works on any shared file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from clusterrun.logs import attempt_logs
from clusterrun.logs.attempt_logs import LogSelection
from clusterrun.logs.merge import LINE_LIMIT, Piece, whole_lines
from clusterrun.system import Clock

CHUNK_BYTES = 1 << 20
LOOK_EVERY = 0.2
LONGEST_WAIT = 3.0
"""Seconds between polls of a file that does not grow, where there are thousands."""
FEW = 256
"""Up to this many files are all polled each time; of more, silent ones less and less often."""
PARTIAL_SECONDS = 3.0
"""How long an unfinished line may lie unchanged, or a progress bar move, before it is shown as it is."""


class Growing:
    """One file being followed: how far it was shown, and the line it has begun."""

    def __init__(self, file: attempt_logs.LogFile, offset: int, exact: bool = False) -> None:
        """With ``exact`` every byte is shown as it comes, else whole lines."""
        self.file, self._exact, self._offset = file, exact, offset
        self._inode = 0
        self._rest = self._early = b""
        self._changed_at = self._early_at = 0.0
        self._wait = self._due = 0.0

    def due(self, now: float) -> bool:
        """Whether it is worth looking at again."""
        return now >= self._due

    def new(self, now: float, longest: float = 0.0) -> bytes:
        """The lines that came since; a silent file is ``due`` ever later, at most ``longest`` seconds."""
        data = self._read()
        self._wait = 0.0 if data or self._rest else min(longest, self._wait * 1.5 + LOOK_EVERY)
        self._due = now + self._wait
        if self._exact:
            return data
        whole, rest = whole_lines(self._rest + data)
        self._rest = attempt_logs.standing(rest)
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
        if (handle := attempt_logs.opened(self.file.path)) is None:
            return b""
        try:
            found = os.fstat(handle)
            if found.st_size < self._offset or self._inode not in (0, found.st_ino):
                self._offset, self._rest = 0, b""  # truncated or replaced: another file from its start
            self._inode = found.st_ino
            data = os.pread(handle, CHUNK_BYTES, self._offset) if found.st_size > self._offset else b""
        finally:
            os.close(handle)
        self._offset += len(data)
        return data


class Follower:
    """All wanted files of one attempt."""

    def __init__(self, folder: str, selection: LogSelection, clock: Clock, exact: bool = False) -> None:
        self._folder, self._selection, self._clock, self._exact = folder, selection, clock, exact
        self._files: dict[str, Growing] = {}
        self._list_at = 0.0

    def so_far(self, tail: int | None) -> Iterator[Piece]:
        """What is there already, merged by time; following continues behind it."""
        files = attempt_logs.log_files(self._folder, self._selection)
        sizes = [attempt_logs.size_of(file.path) for file in files]
        ends = [attempt_logs.end_of_lines(file.path, size) for file, size in zip(files, sizes)]
        for file, end in zip(files, ends):
            self._files[file.path] = Growing(file, end, self._exact)
        shown = spans(files, ends, tail, self._selection.begin)
        return attempt_logs.in_order(self._folder, files, shown, self._exact)

    def new(self, all_: bool = False) -> list[Piece]:
        """What came since last time, by rank; with ``all_`` also of files that were silent for long."""
        now = self._clock.monotonic()
        if all_ or now >= self._list_at:
            self._list(now)
        longest = LONGEST_WAIT if len(self._files) > FEW and not all_ else 0.0
        due = [growing for growing in self._files.values() if all_ or growing.due(now)]
        return self._pieces(due, lambda growing: growing.new(now, longest))

    def _list(self, now: float) -> None:
        """New files appear as ranks start: where there are thousands, listing them all takes its time."""
        for file in attempt_logs.log_files(self._folder, self._selection):
            if file.path not in self._files:
                self._files[file.path] = Growing(file, 0, self._exact)
        took = self._clock.monotonic() - now
        self._list_at = now + min(LONGEST_WAIT, 20 * took)

    def last(self) -> list[Piece]:
        """All that is left once nobody writes any more."""
        found = self.new(all_=True)
        while more := self.new(all_=True):
            found += more
        return found + self._pieces(list(self._files.values()), Growing.last)

    def _pieces(self, files: list[Growing], take: Callable[[Growing], bytes]) -> list[Piece]:
        wall = self._clock.now()
        taken = [(growing.file, take(growing)) for growing in files]
        return sorted(Piece(wall, file.rank, file.stream, data) for file, data in taken if data)


def spans(
    files: list[attempt_logs.LogFile], ends: list[int], tail: int | None, begin: float = 0.0
) -> list[tuple[int, int]]:
    """What to show of each file: all, or ``tail`` lines; nothing if it did not grow since ``begin``."""

    def start(path: str, end: int) -> int:
        if attempt_logs.written_at(path) < begin:
            return end
        return 0 if tail is None else attempt_logs.tail_start(path, end, tail)

    return [(start(file.path, end), end) for file, end in zip(files, ends)]
