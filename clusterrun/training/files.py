"""Checkpoint files in a folder: named, written whole, proven, dropped.

step-000000120.a2.3fe1c09b52d4aa07.pt     step 120, written by attempt 2, with its checksum
.step-000000120.a2.9c41b7.part            one that is being written, or was when its writer died
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import BinaryIO

DIGEST = 16
NAME = re.compile(rf"step-(\d{{9,}})(?:\.a(\d+))?\.([0-9a-f]{{{DIGEST}}})\.pt")
PART = re.compile(r"\.step-\d{9,}\.a(\d+)\.[0-9a-f]+\.part")
STALE = 3600.0
"""Seconds since the last byte after which nobody writes a part any more."""
PIECE = 1 << 20
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""What file systems answer that have no way to make a folder durable."""


@dataclass(frozen=True, order=True)
class CheckpointFile:
    step: int
    attempt: int
    name: str

    @property
    def digest(self) -> str:
        return self.name.split(".")[-2]


class ChecksummedFile:
    """A file that is written from its beginning to its end, and the checksum of what went into it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self.refused: OSError | None = None
        """What the disk said, should whoever saves through this make something else of it."""

    def write(self, data: bytes) -> int:
        """Append; whoever saves through this may not go back."""
        self._sum.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.refused = error
            raise

    def flush(self) -> None:
        self._file.flush()

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()[:DIGEST]


Dump = Callable[[ChecksummedFile], object]


def write(folder: str, step: int, attempt: int, dump: Dump, permit: Callable[[], None]) -> CheckpointFile:
    """Let ``dump`` write a checkpoint; a reader finds all of it or nothing, also after a power cut.

    The checksum stands in the name: one rename publishes the content and what proves it. ``permit``
    is asked right before that, and forbids by raising. Raises OSError; nothing half is left then.
    """
    part = os.path.join(folder, f".step-{step:09d}.a{attempt}.{os.urandom(8).hex()}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(handle, "wb", buffering=PIECE) as file:
            summed = ChecksummedFile(file)
            dumped(dump, summed)
            file.flush()
            os.fsync(handle)
        permit()
        found = CheckpointFile(step, attempt, f"step-{step:09d}.a{attempt}.{summed.digest}.pt")
        os.replace(part, os.path.join(folder, found.name))
    except BaseException:
        forget(part)
        raise
    sync_folder(folder)
    return found


def dumped(dump: Dump, summed: ChecksummedFile) -> None:
    """Run ``dump``; a disk that is full is an OSError, whatever torch calls it."""
    try:
        dump(summed)
    except RuntimeError as error:
        raise summed.refused or error from None


def newest_first(folder: str) -> list[CheckpointFile]:
    """Every checkpoint file by name, whole or damaged, the highest step first; raises OSError."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = [match for match in map(NAME.fullmatch, names) if match]
    return sorted((CheckpointFile(int(one[1]), int(one[2] or 0), one[0]) for one in matches), reverse=True)


def objection(folder: str, found: CheckpointFile) -> str:
    """Why this file is not to be used; empty when its content is what its name says.

    Raises FileNotFoundError where it is gone, PermissionError where it may not be read.
    """
    try:
        right = digest_of(os.path.join(folder, found.name)) == found.digest
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        return f"cannot be read ({(error.strerror or str(error)).lower()})"
    return "" if right else "is damaged (its checksum differs)"


def digest_of(path: str) -> str:
    summed = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            summed.update(piece)
    return summed.hexdigest()[:DIGEST]


def drop_old(folder: str, newest: CheckpointFile, keep: int, damaged: Collection[CheckpointFile]) -> None:
    """Remove what is older than the last ``keep`` up to ``newest``, of this attempt and earlier ones.

    One of a later step stays: it is of a training that went further, or of a newer attempt. What is
    known to be damaged does not count among those that are kept.
    """
    mine = [one for one in newest_first(folder) if one.step <= newest.step and one.attempt <= newest.attempt]
    good = [one for one in mine if one not in damaged and one != newest]
    for one in mine:
        if one != newest and one not in good[: keep - 1]:
            forget(os.path.join(folder, one.name))


def drop_parts(folder: str, attempt: int) -> None:
    """Remove what writers have left that died: those of earlier attempts, and all that nobody writes to."""
    for match in filter(None, map(PART.fullmatch, os.listdir(folder))):
        path = os.path.join(folder, match[0])
        if int(match[1]) < attempt or time.time() - changed(path) > STALE:
            forget(path)


def changed(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return time.time()


def forget(path: str) -> None:
    """Remove the file if it is there; what cannot be removed stays for another time."""
    try:
        os.unlink(path)
    except OSError:
        pass


def make_folder(folder: str) -> None:
    """Make the folder and those above it where they are missing, and let them survive a power cut."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    with contextlib.suppress(PermissionError):  # what may be written to need not be readable
        sync_folder(above)


def sync_folder(folder: str) -> None:
    """Make a rename inside the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(handle)
