"""How a folder stands: there, writable, with how much room; what checks of folders share."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.size import gibibytes
from clusterrun.preflight.untrusted import number, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.preflight.tasks import Asked, Findings, Readings

BYTES = 64 * 1024
_REMEDIES = {
    "EROFS": "it is mounted read-only on this node: remount it, or drain the node",
    "ENOSPC": "the file system is full: remove something, or name another folder",
    "EDQUOT": "your quota is used up: remove something, or ask for more",
    "ESTALE": "the server has forgotten this mount: umount and mount it again, or reboot the node",
    "ENOENT": "it is not there on this node: is the file system mounted?",
    "ENOTDIR": "it is not a folder on this node: is the file system mounted?",
    "EACCES": "this user may not go there on this node: compare owner and mode with another node's",
    "EPERM": "this user may not do that on this node: compare mount options with another node's",
    "EIO": "the disk or the file server fails: dmesg on the node",
    "ETIMEDOUT": "the file server does not answer this node",
    "EHOSTDOWN": "the file server does not answer this node",
    "ENOTCONN": "the file system's client has ended on this node: mount it again",
}


def room(path: str) -> dict[str, object]:
    """Bytes and files that still fit below ``path``; or which step failed, and the error's name."""
    try:
        space = os.statvfs(path)
    except OSError as error:
        return _failure(path, "look at", error)
    return {
        "path": path,
        "size": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "files": space.f_favail if space.f_files else None,
    }


def written(folder: str) -> dict[str, object]:
    """``room``, after a file was written there, forced to the disk, read back and removed."""
    path = os.path.join(folder, f".preflight-{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}")
    data = secrets.token_bytes(BYTES)
    step = "make a file in"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            step = "write to"
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            step = "read from"
            with open(path, "rb") as file:
                same = file.read() == data
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
    except OSError as error:
        return _failure(folder, step, error)
    return {**room(folder), "same": same}


def _failure(path: str, step: str, error: OSError) -> dict[str, object]:
    return {
        "path": path,
        "step": step,
        "error": errno.errorcode.get(error.errno or 0, "?"),
        "why": error.strerror,
    }


def judged(request: Asked, readings: Readings, check: str, what: str, full: Grade) -> Findings:
    """Fail for a folder that cannot be used; ``full`` where less is free than the limits say."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        path = text(reading, "path")
        where = f"{what} {path}"
        error = text(reading, "error")
        if error:
            said = f"cannot {text(reading, 'step')} {where}: {text(reading, 'why')} ({error})"
            yield (
                node,
                Finding(check, Grade.FAIL, said, _REMEDIES.get(error, "look at the folder on the node")),
            )
            continue
        if isinstance(reading, dict) and reading.get("same") is False:
            said = f"what was written to {where} came back changed"
            yield node, Finding(check, Grade.FAIL, said, "the disk or the file server corrupts data: dmesg")
        free, size, files = (number(reading, name) for name in ("free", "size", "files"))
        if free is not None and free < limits["disk_free"] * 2**30:
            said = f"{where} has {gibibytes(free)} free of {gibibytes(size or 0)}"
            said += f"; limit {limits['disk_free']:g} GiB"
            yield node, Finding(check, full, said, _REMEDIES["ENOSPC"])
        if files is not None and files < limits["inodes_free"]:
            said = f"{where} has room for {files:.0f} more files; limit {limits['inodes_free']:.0f}"
            yield node, Finding(check, full, said, "many small files: remove some (df -i)")
