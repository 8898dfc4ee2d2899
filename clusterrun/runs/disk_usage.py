"""Measures what folders hold on their disk, within a limit of time."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Mapping

from clusterrun.model.frozen import frozen

BLOCK = 512
"""Bytes in a block of ``st_blocks``, whatever the file system's own are."""


@frozen
class LinkedFile:
    """A file with several names: its bytes, how many names it has, and how many of them lie here."""

    size: int
    names: int
    here: int


@frozen
class Usage:
    """What a folder takes: ``own`` bytes of files with one name, and by inode those that have more.

    ``whole`` is false where something could not be looked at.
    """

    own: int = 0
    linked: Mapping[tuple[int, int], LinkedFile] = {}
    whole: bool = True

    @property
    def size(self) -> int:
        return self.own + sum(file.size for file in self.linked.values())


def together(parts: Iterable[Usage]) -> Usage:
    """Several folders as one: a file with a name in each of them counts once."""
    own, linked, whole = 0, dict[tuple[int, int], LinkedFile](), True
    for part in parts:
        own, whole = own + part.own, whole and part.whole
        for key, file in part.linked.items():
            here = file.here + (linked[key].here if key in linked else 0)
            linked[key] = LinkedFile(file.size, file.names, here)
    return Usage(own, linked, whole)


def freed(usage: Usage) -> int:
    """The bytes that are free once all this is removed: a file stays while it has a name elsewhere."""
    return usage.own + sum(file.size for file in usage.linked.values() if file.here >= file.names)


def measure(folders: Mapping[str, str], limit: float) -> dict[str, Usage]:
    """What each of ``folders`` takes that was measured in time; one that hangs keeps its thread alone."""
    found: dict[str, Usage] = {}
    late = threading.Event()
    thread = threading.Thread(target=_measure_all, args=(dict(folders), found, late), daemon=True)
    thread.start()
    thread.join(limit)
    late.set()
    return dict(found)


def _measure_all(folders: dict[str, str], found: dict[str, Usage], late: threading.Event) -> None:
    for name, folder in folders.items():
        usage = _usage(folder, late)
        if late.is_set():
            return
        found[name] = usage


def _usage(top: str, late: threading.Event) -> Usage:
    own, linked, whole = 0, dict[tuple[int, int], LinkedFile](), True
    try:
        about = os.lstat(top)
    except OSError as error:
        return Usage(whole=isinstance(error, FileNotFoundError))
    if not stat.S_ISDIR(about.st_mode):
        return Usage(about.st_blocks * BLOCK)
    waiting = [top]
    while waiting and not late.is_set():
        try:
            with os.scandir(waiting.pop()) as entries:
                seen = [(entry, entry.stat(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:  # somebody else removes it
            continue
        except OSError:
            whole = False
            continue
        for entry, about in seen:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif about.st_nlink > 1:
                key = (about.st_dev, about.st_ino)
                here = 1 + (linked[key].here if key in linked else 0)
                linked[key] = LinkedFile(about.st_blocks * BLOCK, about.st_nlink, here)
                continue
            own += about.st_blocks * BLOCK
    return Usage(own, linked, whole)
