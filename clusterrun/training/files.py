"""Write, verify and remove checkpoint files in a folder.

step-000000120.a2.3fe1c09b52d4aa07.pt     step 120, written by attempt 2, with its checksum
.step-000000120.a2.9c41b7.part            a file that is being written, or whose writer died
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
# Seconds since the last byte after which a part is abandoned.
STALE = 3600.0
PIECE = 1 << 20
# Errors of file systems that cannot make a folder durable.
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)


@dataclass(frozen=True, order=True)
class CheckpointFile:
    step: int
    attempt: int
    name: str

    @property
    def digest(self) -> str:
        return self.name.split(".")[-2]


class ChecksummedFile:
    """A file that is written sequentially, with the checksum of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        # The disk's error, in case the writer above replaces it with another one.
        self.refused: OSError | None = None

    def write(self, data: bytes) -> int:
        """Append. Seeking is not supported."""
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
    """Let ``dump`` write a checkpoint. A reader finds all of it or nothing, also after a power cut.

    The checksum is in the name: one rename publishes the content and its proof. ``permit`` is called right
    before the rename, and raises to forbid it. Raises OSError and leaves no part behind.
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
        checkpoint = CheckpointFile(step, attempt, f"step-{step:09d}.a{attempt}.{summed.digest}.pt")
        os.replace(part, os.path.join(folder, checkpoint.name))
    except BaseException:
        forget(part)
        raise
    sync_folder(folder)
    return checkpoint


def dumped(dump: Dump, summed: ChecksummedFile) -> None:
    """Run ``dump``. Raise OSError for a full disk, even if torch raises another error."""
    try:
        dump(summed)
    except RuntimeError as error:
        raise summed.refused or error from None


def newest_first(folder: str) -> list[CheckpointFile]:
    """Return all checkpoint files, damaged ones included, the highest step first. Raises OSError."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = [match for match in map(NAME.fullmatch, names) if match]
    return sorted(
        (CheckpointFile(int(name[1]), int(name[2] or 0), name[0]) for name in matches), reverse=True
    )


def objection(folder: str, checkpoint: CheckpointFile) -> str:
    """Return why this file must not be used; '' if its content matches its name.

    Raises FileNotFoundError if it is missing, PermissionError if it may not be read.
    """
    try:
        right = digest_of(os.path.join(folder, checkpoint.name)) == checkpoint.digest
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
    """Remove old checkpoints up to ``newest`` of this attempt and earlier ones, except the last ``keep``.

    A later step stays: it belongs to a training that went further, or to a newer attempt. ``keep`` does
    not count damaged files.
    """
    mine = [
        checkpoint
        for checkpoint in newest_first(folder)
        if checkpoint.step <= newest.step and checkpoint.attempt <= newest.attempt
    ]
    good = [checkpoint for checkpoint in mine if checkpoint not in damaged and checkpoint != newest]
    for checkpoint in mine:
        if checkpoint != newest and checkpoint not in good[: keep - 1]:
            forget(os.path.join(folder, checkpoint.name))


def drop_parts(folder: str, attempt: int) -> None:
    """Remove parts of dead writers: those of earlier attempts, and those without recent writes."""
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
    """Remove the file if it exists. A file that cannot be removed is left for another time."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def make_folder(folder: str) -> None:
    """Create the folder and its missing parents. They survive a power cut."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    with contextlib.suppress(PermissionError):  # a writable folder need not be readable
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
