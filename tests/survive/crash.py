"""Records the writes of a program, and makes every state of the disk that a crash may leave.

The model is what POSIX promises and no more: the content of a file outlives a crash once the file was
synced, and a name in a folder once that folder was. A change that was not
synced is kept or lost; content may also be kept in part, or be zeros. Any subset in any order is possible.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = 0
"""The number of the folder that the recording begins with."""
MOST_AT_ONCE = 8
"""Unsynced changes of names up to this number are combined in every way. Others are lost or kept alone."""


@dataclass(frozen=True)
class Entry:
    """Names change: those dropped are (folder, name), those set (folder, name, what it names)."""

    sets: tuple[tuple[int, str, int], ...] = ()
    drops: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Content:
    """A file gets this content."""

    node: int
    data: bytes


@dataclass(frozen=True)
class Synced:
    """A file's content, or the names in a folder, outlive a crash from here on."""

    node: int


@dataclass(frozen=True)
class Said:
    """Here the program told somebody something."""

    word: str


Op = Entry | Content | Synced | Said
Tree = tuple[tuple[str, bytes | None], ...]
"""Paths below the root, sorted, each with its content; None for a folder."""


@dataclass
class Recording:
    """The operations below ``root``, in order."""

    root: Path
    ops: list[Op] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _next: Iterator[int] = field(default_factory=lambda: itertools.count(ROOT + 1))

    def say(self, word: str) -> None:
        """Note the announcement ``word``. It must hold from now on."""
        self.ops.append(Said(word))

    def _inside(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and Path(path).is_relative_to(self.root)

    def _node(self, path: Any) -> int:
        """Return the number of the file at ``path``."""
        if Path(path) == self.root:
            return ROOT
        inode = os.lstat(path).st_ino
        if inode not in self._numbers:
            self._numbers[inode] = next(self._next)
        return self._numbers[inode]

    def _place(self, path: Any) -> tuple[int, str]:
        return self._node(Path(path).parent), Path(path).name

    def _forget(self, path: Any) -> None:
        """Forget the number of ``path``, which another file may soon have."""
        with contextlib.suppress(OSError):
            if os.lstat(path).st_nlink == 1:
                self._numbers.pop(os.lstat(path).st_ino, None)

    def made(self, path: Any) -> None:
        """Note a new name for a new file."""
        folder, name = self._place(path)
        node = self._node(path)
        self.ops.append(Entry(((folder, name, node),)))

    def wrote(self, fd: int) -> None:
        """Note the new content of the file behind ``fd``."""
        node = self._numbers.get(os.fstat(fd).st_ino)
        if node is not None:
            self.ops.append(Content(node, Path(f"/proc/self/fd/{fd}").read_bytes()))


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Record all that this process does below ``root``, an empty folder, through ``os`` and ``open``."""
    log, real = Recording(root), {name: getattr(os, name) for name in CALLS}
    with contextlib.ExitStack() as patches:
        for name in CALLS:
            double = globals()[f"_{name}"](log, real[name])
            patches.enter_context(mock.patch.object(os, name, double))
        patches.enter_context(mock.patch.object(builtins, "open", _builtin_open(log)))
        yield log


def _open(log: Recording, real: Any) -> Any:
    def call(path: Any, flags: int, *args: Any, **named: Any) -> int:
        new = log._inside(path) and flags & os.O_CREAT and not os.path.lexists(path)
        fd: int = real(path, flags, *args, **named)
        if new:
            log.made(path)
            log.wrote(fd)
        elif log._inside(path) and flags & os.O_TRUNC:
            log.wrote(fd)
        return fd

    return call


def _write(log: Recording, real: Any) -> Any:
    def call(fd: int, data: Any) -> int:
        count: int = real(fd, data)
        with contextlib.suppress(OSError):
            log.wrote(fd)
        return count

    return call


def _fsync(log: Recording, real: Any) -> Any:
    def call(fd: int) -> None:
        real(fd)
        root = os.stat(log.root).st_ino == os.fstat(fd).st_ino
        node = ROOT if root else log._numbers.get(os.fstat(fd).st_ino)
        if node is not None:
            log.ops.append(Synced(node))

    return call


def _rename(log: Recording, real: Any) -> Any:
    def call(source: Any, target: Any, **named: Any) -> None:
        if not log._inside(target):
            real(source, target, **named)
            return
        node, old, new = log._node(source), log._place(source), log._place(target)
        log._forget(target)
        real(source, target, **named)
        log.ops.append(Entry(((*new, node),), (old,)))

    return call


_replace = _rename


def _link(log: Recording, real: Any) -> Any:
    def call(source: Any, target: Any, **named: Any) -> None:
        real(source, target, **named)
        if log._inside(target):
            log.made(target)

    return call


def _unlink(log: Recording, real: Any) -> Any:
    def call(path: Any, **named: Any) -> None:
        place = log._place(path) if log._inside(path) and os.path.lexists(path) else None
        if place:
            log._forget(path)
        real(path, **named)
        if place:
            log.ops.append(Entry((), (place,)))

    return call


_remove = _unlink
_rmdir = _unlink


def _mkdir(log: Recording, real: Any) -> Any:
    def call(path: Any, *args: Any, **named: Any) -> None:
        real(path, *args, **named)
        if log._inside(path):
            log.made(path)

    return call


CALLS = ("open", "write", "fsync", "rename", "replace", "link", "unlink", "remove", "rmdir", "mkdir")


class _Raw(io.FileIO):
    """A file object that writes through ``os.write``, where it is seen."""

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), bytes(data))


def _builtin_open(log: Recording) -> Any:
    real = builtins.open

    def call(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not (isinstance(file, int) or log._inside(file)):
            return real(file, mode, buffering, *args, **named)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if "a" in mode else os.O_TRUNC)
        handle = file if isinstance(file, int) else os.open(file, flags, 0o666)
        raw = _Raw(handle, "ab" if "a" in mode else "r+b" if isinstance(file, int) else "wb")
        binary = raw if buffering == 0 else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *args, **named)  # type: ignore[type-var]

    return call


# --- the states -----------------------------------------------------------------------------------


def states(ops: list[Op]) -> Iterator[tuple[frozenset[str], Tree]]:
    """Yield every state that a crash at any moment may leave, with the facts acknowledged before it."""
    observed: set[tuple[frozenset[str], Tree]] = set()
    for length in range(len(ops) + 1):
        before = ops[:length]
        message = frozenset(op.word for op in before if isinstance(op, Said))
        for tree in after(before):
            if (message, tree) not in observed:
                observed.add((message, tree))
                yield message, tree


def after(ops: list[Op]) -> Iterator[Tree]:
    """Yield every state that may exist after a crash right behind ``ops``."""
    entries = [(index, op) for index, op in enumerate(ops) if isinstance(op, Entry)]
    folders = {node for _, entry in entries for node in _folders(entry)} | {ROOT}
    synced = {op.node: index for index, op in enumerate(ops) if isinstance(op, Synced)}
    loose = [index for index, op in entries if any(synced.get(f, -1) < index for f in _folders(op))]
    versions = _versions(ops)
    for chosen in _subsets(loose):
        names = _names([entry for index, entry in entries if index in chosen or index not in loose])
        yield from _trees(names, versions, folders)


def _folders(entry: Entry) -> set[int]:
    return {place[0] for place in (*entry.sets, *entry.drops)}


def _subsets(loose: list[int]) -> Iterator[tuple[int, ...]]:
    if len(loose) <= MOST_AT_ONCE:
        for size in range(len(loose) + 1):
            yield from itertools.combinations(loose, size)
        return
    yield tuple(loose)
    for place, index in enumerate(loose):
        yield (index,)
        yield tuple(loose[:place])
        yield tuple(loose[:place] + loose[place + 1 :])


def _names(entries: list[Entry]) -> dict[tuple[int, str], int]:
    names: dict[tuple[int, str], int] = {}
    for entry in entries:
        for place in entry.drops:
            names.pop(place, None)
        for folder, name, node in entry.sets:
            names[folder, name] = node
    return names


def _versions(ops: list[Op]) -> dict[int, list[bytes]]:
    """Return the contents that each file may have: the last synced one, or any written since."""
    result: dict[int, list[bytes]] = {}
    newest: dict[int, bytes] = {}
    for op in ops:
        if isinstance(op, Content):
            newest[op.node] = op.data
            half = op.data[: len(op.data) // 2]
            result.setdefault(op.node, [b""]).extend([half, bytes(len(op.data)), op.data])
        elif isinstance(op, Synced) and op.node in newest:
            result[op.node] = [newest[op.node]]
    return {node: list(dict.fromkeys(contents)) for node, contents in result.items()}


def _trees(
    names: dict[tuple[int, str], int], versions: dict[int, list[bytes]], folders: set[int]
) -> Iterator[Tree]:
    """Yield trees in which one file has each of its contents; the others the newest, then the oldest."""
    paths = dict(_walk(names, ROOT, ""))
    open_items = {node for node in paths.values() if len(versions.get(node, ())) > 1}
    for rest in (-1, 0):
        for varied in open_items or {ROOT}:
            for content in versions.get(varied, [b""]):
                yield tuple(
                    sorted(
                        (path, content if node == varied else _content(node, versions, folders, rest))
                        for path, node in paths.items()
                    )
                )


def _content(node: int, versions: dict[int, list[bytes]], folders: set[int], kind: int) -> bytes | None:
    return None if node in folders or node not in versions else versions[node][kind]


def _walk(names: dict[tuple[int, str], int], folder: int, prefix: str) -> Iterator[tuple[str, int]]:
    for (parent, name), node in names.items():
        if parent == folder:
            yield prefix + name, node
            yield from _walk(names, node, f"{prefix}{name}/")


def put(tree: Tree, root: Path) -> None:
    """Make ``tree`` real in ``root``, an empty folder."""
    for path, content in tree:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if content is None:
            target.mkdir(mode=0o700, exist_ok=True)
        else:
            target.touch(mode=0o600)
            target.write_bytes(content)
