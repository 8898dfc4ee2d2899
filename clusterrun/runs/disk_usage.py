"""Measure the disk usage of folders, within a time limit."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Mapping

from clusterrun.model.frozen import frozen

# Bytes in a block of ``st_blocks`` on every file system (stat(2)).
BLOCK = 512


@frozen
class LinkedFile:
    """A file with several names (hard links)."""

    size: int  # bytes
    names: int  # number of all its names
    names_below: int  # number of its names in the measured folder


@frozen
class Usage:
    """The disk usage of a folder."""

    own: int = 0  # bytes of the files with one name
    linked: Mapping[tuple[int, int], LinkedFile] = {}  # files with several names, by device and inode
    whole: bool = True  # false if a part could not be read

    @property
    def size(self) -> int:
        return self.own + sum(file.size for file in self.linked.values())


def together(parts: Iterable[Usage]) -> Usage:
    """Return the usage of several folders together. A file with a name in each of them counts once."""
    own, linked, whole = 0, dict[tuple[int, int], LinkedFile](), True
    for part in parts:
        own, whole = own + part.own, whole and part.whole
        for key, file in part.linked.items():
            names_below = file.names_below + (linked[key].names_below if key in linked else 0)
            linked[key] = LinkedFile(file.size, file.names, names_below)
    return Usage(own, linked, whole)


def freed(usage: Usage) -> int:
    """Return the bytes that a removal frees. A file with a name elsewhere stays."""
    return usage.own + sum(file.size for file in usage.linked.values() if file.names_below >= file.names)


def measure(folders: Mapping[str, str], limit: float) -> dict[str, Usage]:
    """Return the usage of each of ``folders`` that was measured in ``limit`` seconds.

    A folder that hangs blocks only the thread of this call.
    """
    usages: dict[str, Usage] = {}
    late = threading.Event()
    thread = threading.Thread(target=_measure_all, args=(dict(folders), usages, late), daemon=True)
    thread.start()
    thread.join(limit)
    late.set()
    return dict(usages)


def _measure_all(folders: dict[str, str], usages: dict[str, Usage], late: threading.Event) -> None:
    for name, folder in folders.items():
        usage = _usage(folder, late)
        if late.is_set():
            return
        usages[name] = usage


def _usage(top: str, late: threading.Event) -> Usage:
    """Return the usage of a folder or file. It is partial if ``late`` is set meanwhile."""
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
                files = [(entry, entry.stat(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:  # another process removes it
            continue
        except OSError:
            whole = False
            continue
        for entry, about in files:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif about.st_nlink > 1:
                key = (about.st_dev, about.st_ino)
                names_below = 1 + (linked[key].names_below if key in linked else 0)
                linked[key] = LinkedFile(about.st_blocks * BLOCK, about.st_nlink, names_below)
                continue
            own += about.st_blocks * BLOCK
    return Usage(own, linked, whole)
