"""Write a file whole: a reader sees the old content or the new one, never a part. Reads the end of one."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

# CIFS, FUSE and others answer so if a folder cannot be synced. Then a rename survives a crash only by chance.
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


def write_whole(path: str, data: bytes, mode: int = 0o600, sync: bool = True) -> None:
    """Put ``data`` at ``path`` at once or not at all. Raise ``OSError``; the old content is then unchanged.

    The file and its name outlive a crash of this machine after the return if ``sync`` is true. Otherwise a
    crash in the next seconds may leave the file empty or in part.
    """
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f"{draft_prefix(name)}{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(handle, mode)  # whatever the umask
            write_all(handle, data)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(draft, path)
    except BaseException:
        remove(draft)
        raise
    if sync:
        sync_names(folder)


def draft_prefix(name: str) -> str:
    """Return how the names of unfinished files for ``name`` begin; a writer that was killed leaves one."""
    return f".{name}."


def remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def sync_names(folder: str) -> None:
    """Let the names in ``folder`` outlive a crash of this machine, if its file system can sync folders."""
    handle = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def end_of(path: str, most: int) -> tuple[bytes, int]:
    """Return the end of a file, and where it begins; nothing of what is a link or no plain file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b"", 0
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return b"", 0
        start = max(0, status.st_size - most)
        return os.pread(fd, most, start), start
    except OSError:
        return b"", 0
    finally:
        os.close(fd)
