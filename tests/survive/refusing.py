"""A file system that refuses one call, whichever: those below a folder are counted, and one of them fails."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

BY_PATH = (
    "open",
    "mkdir",
    "rename",
    "replace",
    "link",
    "symlink",
    "unlink",
    "remove",
    "rmdir",
    "chmod",
    "stat",
    "lstat",
    "listdir",
    "scandir",
    "access",
)
BY_NUMBER = ("read", "write", "fsync", "fchmod", "fstat", "close", "ftruncate")


@dataclass
class Refusing:
    """Call number ``number`` (from 0) of the calls that touch ``folder`` fails with ``error``."""

    folder: Path
    number: int
    error: int
    seen: int = 0
    struck: str = ""
    _real: dict[str, Any] = field(default_factory=dict)

    def counts(self, name: str, target: Any) -> None:
        """Count a call; the one that is to fail fails."""
        if not self._touches(target):
            return
        self.seen += 1
        if self.seen == self.number + 1:
            self.struck = f"{name}({target})"
            raise OSError(self.error, os.strerror(self.error), target if isinstance(target, str) else None)

    def _touches(self, target: Any) -> bool:
        if isinstance(target, int):
            with contextlib.suppress(OSError):
                return str(os.readlink(f"/proc/self/fd/{target}")).startswith(str(self.folder))
            return False
        return isinstance(target, (str, os.PathLike)) and str(target).startswith(str(self.folder))


class _File(io.FileIO):
    """A file object whose reading and writing is counted too."""

    def __init__(self, refusing: Refusing, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._refusing = refusing

    def write(self, data: Any) -> int | None:
        self._refusing.counts("write", self.fileno())
        return super().write(data)

    def readinto(self, buffer: Any) -> int | None:
        self._refusing.counts("read", self.fileno())
        return super().readinto(buffer)

    def readall(self) -> bytes | None:
        self._refusing.counts("read", self.fileno())
        return super().readall()


@contextlib.contextmanager
def refusing(folder: Path, number: int, error: int) -> Iterator[Refusing]:
    """Let call ``number`` below ``folder`` fail, of all that this process makes by ``os`` and ``open``."""
    it = Refusing(folder, number, error)
    with contextlib.ExitStack() as patches:
        for name in (*BY_PATH, *BY_NUMBER):
            patches.enter_context(mock.patch.object(os, name, _counted(it, name)))
        patches.enter_context(mock.patch.object(builtins, "open", _opened(it)))
        yield it


def _counted(it: Refusing, name: str) -> Any:
    real = getattr(os, name)

    def call(*args: Any, **named: Any) -> Any:
        if name == "close":  # what a close tells, it tells once the number is free again
            target = args[0]
            touches = it._touches(target)
            real(target)
            return it.counts(name, str(it.folder)) if touches else None
        it.counts(name, args[0] if args else ".")
        return real(*args, **named)

    return call


def _opened(it: Refusing) -> Any:
    real = builtins.open

    def call(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **named: Any) -> Any:
        if not it._touches(file):
            return real(file, mode, buffering, *args, **named)
        if not isinstance(file, int):
            it.counts("open", os.fspath(file))
        raw = _File(it, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        binary: Any = io.BufferedWriter(raw) if raw.writable() else io.BufferedReader(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *args, **named)

    return call
