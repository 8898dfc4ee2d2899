"""Write the trace of one rank's start: a line of JSON for each event, with its place in the script."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

# The folder of all modules of clusterrun that a rank loads.
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen", "<string>")


class TraceFile:
    """The file of this process's events. Children that it forks write nothing."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        # Steps taken since the start.
        self.step = 0
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._old_limit: tuple[int, int] | None = None
        self._blind = False

    def is_ours(self) -> bool:
        """Return whether this is the rank itself, and not a child that it forked."""
        return os.getpid() == self.pid

    def tell(self, kind: str, **fields: Any) -> None:
        if self.is_ours():
            self.write(json.dumps({"t": kind, "n": self.step, **fields}))

    def write(self, line: str) -> None:
        """Write a line that is JSON already. The limit on the script's files does not apply."""
        if self._old_limit is None:
            os.write(self._out, f"{line}\n".encode())
            return
        low = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, self._old_limit)
        os.write(self._out, f"{line}\n".encode())
        resource.setrlimit(resource.RLIMIT_FSIZE, low)

    def limit_files(self, size: int) -> None:
        """Let the kernel refuse writes of this process beyond ``size`` bytes of a file."""
        self._old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, self._old_limit[1]))

    def lift_limit(self) -> None:
        """Lift the limit of ``limit_files``, if that was called."""
        if self._old_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._old_limit)
            self._old_limit = None

    def guarded(self, hook: Callable[..., object]) -> Callable[..., None]:
        """Return the hook with its exceptions caught, as no hook may end a script. Report the first one."""

        def watched(*args: Any) -> None:
            try:
                hook(*args)
            except Exception as error:  # noqa: BLE001 (torch of any version, objects of any library)
                self.is_blind(error)

        return watched

    def is_blind(self, error: Exception) -> None:
        """Report once that something could not be seen."""
        if not self._blind:
            self._blind = True
            self.tell("blind", why=f"{type(error).__name__}: {error}"[:300])


def lines_of(path: str) -> Iterable[Any]:
    """Yield the events of a trace. An incomplete last line is skipped."""
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    pass


def frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_called_by(names: tuple[str, ...]) -> bool:
    return any(frame.f_code.co_name in names for frame in frames())


def is_library(path: str) -> bool:
    """Return whether a file belongs to a library or to clusterrun, not to the script."""
    return path.startswith(HERE) or any(part in path for part in LIBRARIES)


def script_line() -> str:
    """Return the innermost line on this thread's stack that belongs to no library, as ``train.py:88``."""
    for frame in frames():
        name = frame.f_code.co_filename
        if not is_library(name):
            path = os.path.relpath(name) if name.startswith(os.getcwd()) else name
            return f"{path}:{frame.f_lineno}"
    return ""
