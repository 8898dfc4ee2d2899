"""Writes the run's state, at most five times a second and again after a failure; knows no machine.

A disk that is full, or gone for a while, must not end a run: the newest state waits in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from clusterrun.atomic_file import remove
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import RunState
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.run_files import drop_drafts, highest_attempt, read_state, write_state

_LEAST_BETWEEN = 0.2
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_LAST_TRIES_SECONDS = 15.0
_RESERVE_BYTES = 256 * 1024


class StateWriter:
    """``epoch`` is our highest attempt; ``superseded`` is called when a higher one stands there."""

    def __init__(self, loop: EventLoop, paths: RunPaths, note: Callable[[str], None]) -> None:
        self.epoch = -1
        self.superseded: Callable[[int], None]
        self._loop = loop
        self._paths = paths
        self._note = note
        self._newest: RunState | None = None
        self._written_at = float("-inf")
        self._pause = 0.0
        self._due = False
        self._theirs = False
        self._looked_for = -1
        self._in_doubt = False

    def save(self, state: RunState) -> None:
        """Write ``state``, now or soon; an older one that still waits is forgotten."""
        self._newest = state
        if not self._due:
            self._due = True
            self._loop.at(self._written_at + max(_LEAST_BETWEEN, self._pause), self._write)

    def keep_room(self) -> None:
        """Hold some of the disk, for the last word of a run that has filled it."""
        try:
            fd = os.open(self._paths.reserve, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(bytes(_RESERVE_BYTES))
        except OSError:
            pass

    def look(self) -> None:
        """See whether another coordinator has taken over; its state is never overwritten."""
        try:
            highest = highest_attempt(self._paths)
        except OSError:
            return
        self._in_doubt = False
        if highest > self.epoch >= 0 and not self._theirs:
            self._theirs = True
            self.superseded(highest)

    def doubt(self) -> None:
        """This process stood still: somebody may have taken over meanwhile."""
        self._in_doubt = True
        self.look()

    def knows(self) -> bool:
        """Whether it was seen, since this process stood still, that nobody has taken over."""
        if self._in_doubt:
            self.look()
        return not self._in_doubt and not self._theirs

    def taken_over(self, epoch: int) -> bool:
        """Whether another coordinator has a higher attempt; looked up once for each ``epoch`` of ours."""
        if self._looked_for < epoch:
            self._looked_for = epoch
            self.look()
        return self._theirs

    def has_a_place(self) -> bool:
        """Whether the run directory is there; one that cannot be looked at is."""
        try:
            os.stat(self._paths.run_dir)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True

    def finish(self, deleted: bool = False) -> None:
        """Write what still waits, within a bounded time; in vain where all was ``deleted`` for good."""
        until = steady() + _LAST_TRIES_SECONDS
        remove(self._paths.reserve)
        while self._newest and not self._theirs:
            self._write()
            if not self._newest or steady() > until or deleted:
                break
            time.sleep(_FIRST_PAUSE)
        if not self._theirs:
            drop_drafts(self._paths.state)

    def _write(self) -> None:
        self._due = False
        self.look()
        if self._newest is None or self._theirs:
            return
        state, self._written_at = self._newest, steady()
        try:
            write_state(self._paths, state if state.attempts else self._with_history(state))
        except OSError as error:
            self._failed(error)
            return
        if self._pause:
            self._note("the state is written again")
        self._newest, self._pause = None, 0.0

    def _with_history(self, state: RunState) -> RunState:
        """A run that ends before its attempts were read keeps those that an earlier coordinator wrote."""
        before = read_state(self._paths)
        if before is None:
            return state
        known = {"epoch": before.epoch, "attempts": before.attempts, "excluded": before.excluded}
        return replace(state, started_at=before.started_at, **known)

    def _failed(self, error: OSError) -> None:
        if not self._pause:
            self._note(f"the state cannot be written ({error.strerror}); the run goes on, it is tried again")
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._due = True
        self._loop.after(self._pause, self._write)
