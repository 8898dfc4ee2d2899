"""Write the coordinator's files into the run directory, and read the client's questions from it.

A full or unreachable disk must not end a run. A failed write is noted, and the newest state waits in memory.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from clusterrun.atomic_file import end_of, remove, write_whole
from clusterrun.coordinator.actions import SaveBeside, SaveReport, WriteNotice
from clusterrun.coordinator.events import Progressed
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any, replace
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import RunState
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.run_files import drop_drafts, highest_attempt, open_log, read_state, write_state
from clusterrun.runtime.stderr import say

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Limits on the questions that clients put into the run directory: the bytes of one, and the files at a time.
_QUESTION_BYTES = 64 * 1024
_MOST_QUESTIONS = 1000
# Seconds between two writes of the state, and between two tries after a failed write, which double.
_WRITE_SECONDS = 0.2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
# Seconds for which the last state of a run is tried.
_LAST_TRIES_SECONDS = 15.0
# Size of a file that is removed to make room for the last state on a full disk.
_RESERVE_BYTES = 256 * 1024
# Lines of the log that wait for its file.
_MOST_WAITING_LINES = 1000
MOST_KILL_WAIT_SECONDS = 7 * 86400.0


class ReportFiles:
    """Files of one run. ``note`` is called with the reason if a write fails."""

    def __init__(self, orders: Orders, paths: RunPaths, note: Callable[[str], None]) -> None:
        self._orders, self._paths, self._note = orders, paths, note
        self._asked: set[str] = set()

    def report(self, action: SaveReport) -> None:
        """Write ``preflight.json``, and a copy to the cluster's findings if there are any."""
        values = encode(action.report)
        self._write_values(self._paths.attempt(action.epoch).preflight, values)
        folder = self._orders.preflight.findings
        if folder and action.keep:
            try:
                os.makedirs(folder, 0o700, exist_ok=True)
            except OSError as error:
                self._note(f"the findings cannot be kept in {folder}: {error.strerror}")
                return
            self._write_values(os.path.join(folder, f"{self._orders.run_id}.{action.epoch}.json"), values)

    def beside(self, action: SaveBeside) -> None:
        if not _NAME.fullmatch(action.name):
            self._note(f"no file of an attempt may be called {action.name!r}")
            return
        path = self._paths.attempt(action.epoch).beside(action.name)
        self._write(path, action.text.encode("utf-8", "backslashreplace"))

    def _write_values(self, path: str, values: Any) -> None:
        self._write(path, json.dumps(values).encode() + b"\n")

    def _write(self, path: str, data: bytes) -> None:
        try:
            write_whole(path, data)
        except OSError as error:
            self._note(f"{path} cannot be written: {error.strerror}")

    def progress(self, epoch: int) -> Progressed:
        """Return the progress that rank 0 reported, and the last agent that lost its coordinator.

        A malformed file counts as no report.
        """
        values = _values(self._paths.attempt(epoch).progress)
        counts = [values.get(name) for name in ("step", "checkpoint")]
        step, checkpoint = [count if type(count) is int and count >= 0 else -1 for count in counts]
        orphan = _values(self._paths.orphan_report)
        node, at = orphan.get("node"), orphan.get("at")
        progress = Progressed(epoch, step, checkpoint, values.get("stopping") is True)
        if not isinstance(node, str) or not isinstance(at, float):
            return progress
        return replace(progress, orphan=node, orphan_at=at)

    def cancel_mark(self) -> tuple[int, int] | None:
        """Return a mark that changes with each request to cancel the run; None if there is no request."""
        try:
            status = os.lstat(self._paths.cancel)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def cancel_kill_wait(self) -> float | None:
        """Return the seconds from TERM to KILL that the request names; None if it names none."""
        seconds = _values(self._paths.cancel).get("kill_wait")
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < MOST_KILL_WAIT_SECONDS:
            return None
        return float(seconds)

    def successor(self, job_id: str, excluded: tuple[str, ...]) -> None:
        self._write_values(self._paths.successor, {"job_id": job_id, "excluded": excluded})

    def next(self, job_id: str, excluded: tuple[str, ...]) -> None:
        self._write_values(self._paths.next, {"job_id": job_id, "excluded": excluded})

    def no_next(self) -> None:
        remove(self._paths.next)

    def arrive(self, job_id: str) -> None:
        """Record that ``job_id`` runs. If it is the expected next job, it becomes the successor."""
        waited = _values(self._paths.next)
        excluded = waited.get("excluded", [])
        if waited.get("job_id") == job_id and isinstance(excluded, list):
            self.successor(job_id, tuple(map(str, excluded)))
            self.no_next()

    def notice(self, action: WriteNotice) -> None:
        values = {"why": action.why, "at": time.time(), "until": action.until}
        self._write_values(self._paths.attempt(action.epoch).notice, values)

    def asks(self) -> Iterator[tuple[str, str]]:
        """Yield name and text of every question that is new since the last call. Clients remove theirs."""
        try:
            names = sorted(os.listdir(self._paths.asks))
        except OSError:
            return
        self._asked.intersection_update(names)
        for name in names:
            if name in self._asked or not _NAME.fullmatch(name) or len(self._asked) >= _MOST_QUESTIONS:
                continue
            if text := _small_file(os.path.join(self._paths.asks, name)):
                self._asked.add(name)
                yield name, text


def _values(path: str) -> dict[str, Any]:
    """Return the values of a small JSON document; empty if it is none."""
    try:
        document = json.loads(_small_file(path) or "null")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _small_file(path: str) -> str:
    return end_of(path, _QUESTION_BYTES)[0].decode("utf-8", "replace")


class StateWriter:
    """Writes ``state.json``. It calls ``superseded`` if the run has an attempt above its own ``epoch``."""

    def __init__(self, loop: EventLoop, paths: RunPaths, note: Callable[[str], None]) -> None:
        self.epoch = -1
        self.superseded: Callable[[int], None]
        self._loop, self._paths, self._note = loop, paths, note
        self._newest: RunState | None = None
        self._written_at = float("-inf")
        self._pause = 0.0
        self._due = self._theirs = False
        self._looked_for = -1
        self._in_doubt = False

    def save(self, state: RunState) -> None:
        """Write ``state`` now or soon. It replaces an older state that still waits."""
        self._newest = state
        if not self._due:
            self._due = True
            self._loop.at(self._written_at + max(_WRITE_SECONDS, self._pause), self._write)

    def keep_room(self) -> None:
        """Reserve disk space for the last state of a run that fills the disk."""
        with suppress(OSError):
            fd = os.open(self._paths.reserve, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(bytes(_RESERVE_BYTES))

    def check_takeover(self) -> None:
        """Check whether another coordinator has taken over. Its state is never overwritten."""
        try:
            highest = highest_attempt(self._paths)
        except OSError:
            return
        self._in_doubt = False
        if highest > self.epoch >= 0 and not self._theirs:
            self._theirs = True
            self.superseded(highest)

    def doubt(self) -> None:
        self._in_doubt = True
        self.check_takeover()

    def knows(self) -> bool:
        """Return whether a check since the last suspension showed that no other coordinator took over."""
        if self._in_doubt:
            self.check_takeover()
        return not self._in_doubt and not self._theirs

    def taken_over(self, epoch: int) -> bool:
        """Return whether another coordinator has a higher attempt. Check once for each ``epoch`` of ours."""
        if self._looked_for < epoch:
            self._looked_for = epoch
            self.check_takeover()
        return self._theirs

    def has_a_place(self) -> bool:
        """Return whether the run directory exists. It counts as existing if that cannot be determined."""
        try:
            os.stat(self._paths.run_dir)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True

    def finish(self, deleted: bool = False) -> None:
        """Write the state that still waits, within a bounded time. Try once if all was ``deleted``."""
        until = steady() + _LAST_TRIES_SECONDS
        remove(self._paths.reserve)
        while self._newest and not self._theirs:
            self._write()
            if not self._newest or steady() > until or deleted:
                break
            time.sleep(_FIRST_PAUSE_SECONDS)
        if not self._theirs:
            drop_drafts(self._paths.state)

    def _write(self) -> None:
        self._due = False
        self.check_takeover()
        if self._newest is None or self._theirs:
            return
        state, self._written_at = self._newest, steady()
        try:
            before = None if state.attempts else read_state(self._paths)
            if before is not None:
                # An earlier coordinator recorded attempts, which were not read yet.
                history = {"epoch": before.epoch, "attempts": before.attempts, "excluded": before.excluded}
                state = replace(state, started_at=before.started_at, **history)
            write_state(self._paths, state)
        except OSError as error:
            if not self._pause:
                why = f"the state cannot be written ({error.strerror})"
                self._note(f"{why}; the run goes on, it is tried again")
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            self._due = True
            self._loop.after(self._pause, self._write)
            return
        if self._pause:
            self._note("the state is written again")
        self._newest, self._pause = None, 0.0


class RunLog:
    """The log of the coordinator. A failed write never ends a run.

    Lines from before the attempt has its folder are written later. A log has at most ``most`` bytes, so it
    cannot fill a disk. Its last line then says so.
    """

    def __init__(self, paths: RunPaths, most: int = 4 * 1024 * 1024) -> None:
        self._paths, self._most = paths, most
        self._fd: int | None = None
        self._left = 0
        self._unwritten: deque[str] = deque(maxlen=_MOST_WAITING_LINES)

    def begin(self, epoch: int) -> None:
        self.close()
        try:
            self._fd = open_log(self._paths.attempt(epoch).coordinator_log)
        except OSError:
            return
        self._left = self._most
        for line in self._unwritten:
            self._write(self._fd, line)
        self._unwritten.clear()

    def note(self, text: str) -> None:
        say(f"clusterrun: {text}")
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}"
        if self._fd is None:
            self._unwritten.append(line)
        else:
            self._write(self._fd, line)

    def _write(self, fd: int, line: str) -> None:
        if self._left <= 0:
            return
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        self._left -= len(data)
        if self._left <= 0:
            data = b"this log has reached its limit; nothing further is written\n"
        with suppress(OSError):  # a failed write must not end a run
            os.write(fd, data)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
