"""The coordinator's log: a line on standard error, and the same with its time in a file of the attempt."""

from __future__ import annotations

import time

from clusterrun.model.paths import RunPaths
from clusterrun.runtime.run_files import RankLog
from clusterrun.runtime.stderr import say


class RunLog:
    """What is said before an attempt has its folder is written when it has; it never ends a run."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._file: RankLog | None = None
        self._unwritten: list[str] = []

    def begin(self, epoch: int) -> None:
        """From now on in the folder of this attempt."""
        self.close()
        try:
            self._file = RankLog(self._paths.attempt(epoch).coordinator_log)
        except OSError:
            self._file = None
            return
        for line in self._unwritten:
            self._file.write(line)
        self._unwritten.clear()

    def note(self, text: str) -> None:
        say(f"clusterrun: {text}")
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}"
        if self._file:
            self._file.write(line)
        else:
            self._unwritten.append(line)

    def close(self) -> None:
        if self._file:
            self._file.close()
