"""Read the output of the ranks: one complete attempt, or growing files until the run ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from clusterrun.logs import attempt_logs
from clusterrun.logs.attempt_logs import LogFile, LogSelection, attempts, in_order, log_files, size_of
from clusterrun.logs.merge import LINE_LIMIT, Piece, order, whole_lines
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.system import Clock

CHUNK_BYTES = 1 << 20
LOOK_EVERY = 0.2
# Longest interval in seconds between polls of a silent file, if there are thousands of files.
LONGEST_WAIT = 3.0
# Up to this number all files are polled each time. Among more files, silent ones are polled less often.
FEW = 256
# Seconds after which an unfinished line or a moving progress bar is shown.
PARTIAL_SECONDS = 3.0


class Growing:
    """One growing file: the offset that was shown, and the unfinished line."""

    def __init__(self, file: LogFile, offset: int, exact: bool) -> None:
        self.file, self._exact, self._offset = file, exact, offset
        self._inode = 0
        self._rest = self._early = b""
        self._changed_at = self._early_at = 0.0
        self._wait = self._due = 0.0

    def due(self, now: float) -> bool:
        return now >= self._due

    def new(self, now: float, longest: float = 0.0) -> bytes:
        """Return the new lines. A silent file is polled at growing intervals, at most ``longest`` seconds."""
        data = self._read()
        self._wait = 0.0 if data or self._rest else min(longest, self._wait * 1.5 + LOOK_EVERY)
        self._due = now + self._wait
        if self._exact:
            return data
        complete, rest = whole_lines(self._rest + data)
        self._rest = attempt_logs.standing(rest)
        if data:
            self._changed_at = now
        if b"\r" in self._rest:
            # A progress bar: show its current state, and keep it, since the next state replaces it.
            if self._rest == self._early or now - self._early_at < PARTIAL_SECONDS:
                return complete
            self._early, self._early_at = self._rest, now
            return complete + self._rest
        if len(self._rest) <= LINE_LIMIT and now - self._changed_at < PARTIAL_SECONDS:
            return complete
        unfinished, self._rest = self._rest, b""
        return complete + unfinished

    def last(self) -> bytes:
        """Return the unfinished line that remains at the end."""
        unfinished, self._rest = self._rest, b""
        return unfinished if unfinished != self._early else b""

    def _read(self) -> bytes:
        if (handle := attempt_logs.opened(self.file.path)) is None:
            return b""
        try:
            status = os.fstat(handle)
            if status.st_size < self._offset or self._inode not in (0, status.st_ino):
                self._offset, self._rest = 0, b""  # truncated or replaced: read the new file from its start
            self._inode = status.st_ino
            data = os.pread(handle, CHUNK_BYTES, self._offset) if status.st_size > self._offset else b""
        finally:
            os.close(handle)
        self._offset += len(data)
        return data


class Follower:
    def __init__(self, folder: str, selection: LogSelection, clock: Clock) -> None:
        self._folder, self._selection, self._clock = folder, selection, clock
        self._files: dict[str, Growing] = {}
        self._list_at = 0.0

    def so_far(self) -> Iterator[Piece]:
        """Yield the existing content, merged by time. Following continues behind it."""
        files = log_files(self._folder, self._selection)
        sizes = [size_of(file.path) for file in files]
        ends = [attempt_logs.end_of_lines(file.path, size) for file, size in zip(files, sizes)]
        for file, end in zip(files, ends):
            self._files[file.path] = Growing(file, end, self._selection.exact)
        return in_order(self._folder, files, spans(files, ends, self._selection), self._selection.exact)

    def new(self, all_: bool = False) -> list[Piece]:
        """Return the new content by rank, with ``all_`` also of files that are polled less often."""
        now = self._clock.monotonic()
        if all_ or now >= self._list_at:
            # Ranks may have started. Listing thousands of files takes time.
            for file in log_files(self._folder, self._selection):
                if file.path not in self._files:
                    self._files[file.path] = Growing(file, 0, self._selection.exact)
            took = self._clock.monotonic() - now
            self._list_at = now + min(LONGEST_WAIT, 20 * took)
        longest = LONGEST_WAIT if len(self._files) > FEW and not all_ else 0.0
        due = [growing for growing in self._files.values() if all_ or growing.due(now)]
        return self._pieces(due, lambda growing: growing.new(now, longest))

    def last(self) -> list[Piece]:
        """Return the remaining content after all writers have ended."""
        pieces = self.new(all_=True)
        while more := self.new(all_=True):
            pieces += more
        return pieces + self._pieces(list(self._files.values()), Growing.last)

    def _pieces(self, files: list[Growing], take: Callable[[Growing], bytes]) -> list[Piece]:
        wall = self._clock.now()
        taken = [(growing.file, take(growing)) for growing in files]
        return sorted((Piece(wall, file.rank, file.stream, data) for file, data in taken if data), key=order)


def spans(files: list[LogFile], ends: list[int], selection: LogSelection) -> list[tuple[int, int]]:
    """Return the part of each file to show: all of it, its last lines, or nothing of a silent file."""
    tail = selection.tail

    def start(path: str, end: int) -> int:
        if attempt_logs.written_at(path) < selection.begin:
            return end
        return 0 if tail is None else attempt_logs.tail_start(path, end, tail)

    return [(start(file.path, end), end) for file, end in zip(files, ends)]


def newest_attempt(paths: RunPaths, attempt: int | None) -> int | None:
    """Return ``attempt``, or the newest if it is None; None before the first. Raise ``BadInput``."""
    numbers = attempts(paths.attempts)
    if attempt is None:
        return numbers[-1] if numbers else None
    if attempt not in numbers:
        remedy = f"attempts of the run: {', '.join(map(str, numbers))}"
        raise BadInput(f"there is no attempt {attempt}", remedy if numbers else "the run has not started yet")
    return attempt


def newest_with_output(paths: RunPaths) -> int:
    """Return the newest attempt in which a rank printed something, else the newest. There is one."""
    numbers = attempts(paths.attempts)
    for number in reversed(numbers):
        if any(size_of(file.path) for file in log_files(paths.attempt(number).folder, LogSelection())):
            return number
    return numbers[-1]


def so_far(paths: RunPaths, attempt: int, selection: LogSelection) -> Iterator[Piece]:
    """Yield the output of the ranks of one attempt by time."""
    folder = paths.attempt(attempt).folder
    files = log_files(folder, selection)
    ends = [size_of(file.path) for file in files]
    return in_order(folder, files, spans(files, ends, selection), selection.exact)


def following(
    paths: RunPaths,
    selection: LogSelection,
    over: Callable[[], bool],
    clock: Clock,
    began: Callable[[int], None],
) -> Iterator[Piece]:
    """Yield the output of ranks through every new attempt, until ``over``.

    A piece without data marks time.
    """
    epoch: int | None = None
    follower: Follower | None = None
    while True:
        finished = over()  # checked before reading, so that all output before the end is read
        numbers = attempts(paths.attempts)
        further = numbers[-1:] if epoch is None else [number for number in numbers if number > epoch]
        if further:
            yield from follower.last() if follower else ()
            began(further[0])
            follower = Follower(paths.attempt(further[0]).folder, selection, clock)
            yield from follower.so_far()
            epoch, selection = further[0], replace(selection, tail=None)
            continue
        pieces = follower.new() if follower else []
        yield from pieces
        if finished:
            yield from follower.last() if follower else ()
            return
        if not pieces:
            yield Piece(clock.now(), 0, "out", b"")
            clock.sleep(LOOK_EVERY)
