"""Writes reports and answers into the run directory, and reads questions that the client left there."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator

from clusterrun.atomic_file import remove, write_whole
from clusterrun.coordinator.actions import SaveBeside, SaveReport, WriteNotice
from clusterrun.coordinator.events import Progressed
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_ASK = 64 * 1024
_MOST_ASKS = 1000


class ReportFiles:
    """Files of one run; ``note`` says what could not be written."""

    def __init__(self, orders: Orders, paths: RunPaths, note: Callable[[str], None]) -> None:
        self._orders, self._paths, self._note = orders, paths, note
        self._asked: set[str] = set()

    def report(self, order: SaveReport) -> None:
        """``preflight.json``; and again where the cluster's findings are kept, if there are any."""
        data = json.dumps(encode(order.report)).encode() + b"\n"
        self._write(self._paths.attempt(order.epoch).preflight, data)
        folder = self._orders.preflight.findings
        if folder and order.keep:
            try:
                os.makedirs(folder, 0o700, exist_ok=True)
            except OSError as error:
                self._note(f"the findings cannot be kept in {folder}: {error.strerror}")
                return
            self._write(os.path.join(folder, f"{self._orders.run_id}.{order.epoch}.json"), data)

    def beside(self, order: SaveBeside) -> None:
        if not _NAME.fullmatch(order.name):
            self._note(f"no file of an attempt may be called {order.name!r}")
            return
        path = self._paths.attempt(order.epoch).beside(order.name)
        self._write(path, order.text.encode("utf-8", "backslashreplace"))

    def _write(self, path: str, data: bytes) -> None:
        try:
            write_whole(path, data)
        except OSError as error:
            self._note(f"{path} cannot be written: {error.strerror}")

    def progress(self, epoch: int) -> Progressed:
        """What rank 0 has reported; a file that is no such report says nothing."""
        told = _values(self._paths.attempt(epoch).progress)
        counts = [told.get(name) for name in ("step", "checkpoint")]
        step, checkpoint = [n if type(n) is int and n >= 0 else -1 for n in counts]
        return Progressed(epoch, step, checkpoint, told.get("stopping") is True)

    def successor(self, job_id: str, excluded: tuple[str, ...]) -> None:
        self._write(self._paths.successor, _job(job_id, excluded))

    def next(self, job_id: str, excluded: tuple[str, ...]) -> None:
        """The job that waits for the end of this one."""
        self._write(self._paths.next, _job(job_id, excluded))

    def no_next(self) -> None:
        remove(self._paths.next)

    def arrive(self, job_id: str) -> None:
        """``job_id`` runs now: where it is the one that was waited for, it goes on with the run."""
        waited = _values(self._paths.next)
        excluded = waited.get("excluded", [])
        if waited.get("job_id") == job_id and isinstance(excluded, list):
            self.successor(job_id, tuple(map(str, excluded)))
            self.no_next()
        elif self._orders.shape >= 0 and not os.path.exists(self._paths.successor):
            self.successor(job_id, ())  # of several jobs the run's own is this one

    def notice(self, order: WriteNotice) -> None:
        """The announced end, for ranks that look for it."""
        text = json.dumps({"why": order.why, "at": time.time(), "until": order.until})
        self._write(self._paths.attempt(order.epoch).notice, text.encode() + b"\n")

    def asks(self) -> Iterator[tuple[str, str]]:
        """Name and text of every question that was left since the last look."""
        try:
            names = sorted(os.listdir(self._paths.asks))
        except OSError:
            return
        for name in names:
            if name in self._asked or not _NAME.fullmatch(name) or len(self._asked) >= _MOST_ASKS:
                continue
            text = _small_file(os.path.join(self._paths.asks, name))
            if text is not None:
                self._asked.add(name)
                yield name, text


def _job(job_id: str, excluded: tuple[str, ...]) -> bytes:
    return json.dumps({"job_id": job_id, "excluded": excluded}).encode() + b"\n"


def _values(path: str) -> dict[str, Any]:
    """What a small document holds; nothing where it is none."""
    try:
        found = json.loads(_small_file(path) or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _small_file(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, _LONGEST_ASK).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
