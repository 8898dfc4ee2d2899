"""The coordinator's log: a line on standard error, and the same with its time in a file of the attempt."""

from __future__ import annotations

import os
import time

from clusterrun.model.paths import RunPaths
from clusterrun.runtime.run_files import open_log
from clusterrun.runtime.stderr import say


class RunLog:
    """What is said before an attempt has its folder is written when it has; it never ends a run.

    A file cannot fill a disk: past ``most`` bytes it says so once and ends.
    """

    def __init__(self, paths: RunPaths, most: int = 4 * 1024 * 1024) -> None:
        self._paths, self._most = paths, most
        self._fd: int | None = None
        self._left = 0
        self._unwritten: list[str] = []

    def begin(self, epoch: int) -> None:
        """From now on in the folder of this attempt."""
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
        try:
            os.write(fd, data)
        except OSError:  # a disk that does not take it must not end a run
            pass

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
