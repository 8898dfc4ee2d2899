"""Files and folders that only their owner may touch, written whole."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from clusterrun import atomic_file
from clusterrun.model.errors import BadInput, ClusterrunError, system_reason


class DiskRefused(BadInput):
    """A file or folder cannot be made, written or trusted."""


def private_folder(path: str) -> None:
    """Make ``path`` and its parents with mode 0700, whatever the umask.

    Raise ``DiskRefused`` if others own the folder or may write to it.
    """
    try:
        above = os.path.dirname(path)
        if not os.path.exists(above):
            private_folder(above)
        new_folder(path)
    except FileExistsError:
        trust(path)
    except OSError as error:
        raise refusal(path, error) from error


@contextmanager
def alone(path: str, refused: Callable[[OSError], ClusterrunError]) -> Iterator[None]:
    """Lock the file ``path``. Raise the error of ``refused`` if another process holds the lock."""
    import fcntl

    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refused(error) from error
        yield
    finally:
        os.close(handle)


def new_folder(path: str, sync: bool = True) -> None:
    """Make ``path`` with mode 0700, whatever the umask. ``sync`` makes it survive a crash of this machine."""
    os.mkdir(path, 0o700)
    try:
        os.chmod(path, 0o700)
        if sync:
            atomic_file.sync_names(os.path.dirname(path))
    except OSError:
        os.rmdir(path)
        raise


def trust(path: str, links: bool = True) -> None:
    """Raise ``DiskRefused`` if others own the folder or may write to it, or for a link unless ``links``."""
    try:
        status = os.stat(path, follow_symlinks=links)
    except OSError as error:
        raise refusal(path, error) from error
    if not stat.S_ISDIR(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a folder"
        raise DiskRefused(f"{path} is {kind}", "move it away, or set CLUSTERRUN_HOME to another folder")
    if status.st_uid != os.geteuid():
        message = f"{path} belongs to another user (number {status.st_uid})"
        raise DiskRefused(message, "set CLUSTERRUN_HOME to a folder of yours")
    if status.st_mode & 0o022:
        message = f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
        raise DiskRefused(message, f"chmod go-w {shlex.quote(path)}")


def write_whole(path: str, data: str | bytes, mode: int = 0o600, sync: bool = True) -> None:
    """Write the file as ``atomic_file.write_whole`` does. Raise ``DiskRefused`` if it fails."""
    content = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    try:
        atomic_file.write_whole(path, content, mode, sync)
    except OSError as error:
        raise refusal(path, error) from error


def empty_file(path: str) -> None:
    """Make an empty file with mode 0600, whatever the umask, if it does not exist. Raise ``DiskRefused``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        raise refusal(path, error) from error


def share(source: str, path: str) -> None:
    """Make ``path`` a hard link to ``source``, a file that never changes, or a copy if that fails."""
    try:
        os.link(source, path)
    except OSError:  # another file system, or a file system without hard links
        try:
            with open(source, "rb") as file:
                content = file.read()
        except OSError as error:
            raise refusal(source, error) from error
        write_whole(path, content)


def refusal(path: str, error: OSError) -> DiskRefused:
    """Return the error for the user from an error of the operating system about ``path``."""
    remedies = {
        errno.ENOSPC: "free some space, or set CLUSTERRUN_HOME to a folder on a file system that has room",
        errno.EDQUOT: "your quota is used up: free some space, or set CLUSTERRUN_HOME to another file system",
    }
    elsewhere = "set CLUSTERRUN_HOME to a folder that you may write and that the nodes share"
    return DiskRefused(f"{path}: {system_reason(error)}", remedies.get(error.errno or 0, elsewhere))


def removed(path: str) -> None:
    """Remove a file if it exists. Raise ``DiskRefused``."""
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise refusal(path, error) from error


def names_in(folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist. Raise ``DiskRefused``."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refusal(folder, error) from error


def own_content(path: str) -> bytes | None:
    """Return the content of a private file (0600, our own, no link); None if it is missing or not private."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        is_private = (
            status.st_uid == os.geteuid() and not status.st_mode & 0o077 and stat.S_ISREG(status.st_mode)
        )
        return file.read() if is_private else None
