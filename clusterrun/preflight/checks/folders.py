"""Check the folders of a run: they exist, respond, are writable if ranks write there, and have room."""

from __future__ import annotations

import errno
import os
import resource
import secrets
from collections.abc import Callable, Iterator

from clusterrun import atomic_file
from clusterrun.model.frozen import frozen
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.size import gibibytes
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, text

LIMIT = 10.0
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
_HANGS = "the file system hangs on this node: dmesg, mount; then remount it or reboot the node"


def room(path: str) -> dict[str, object]:
    """Return the bytes and files that still fit below ``path``, or the failed step and the error's name."""
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
    """Write a file, flush it to disk, read it back and remove it. Return ``room`` or the failed step.

    The file respects the user's limit for files (``ulimit -f``), which is no property of the folder.
    """
    path = os.path.join(folder, f".preflight-{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}")
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = secrets.token_bytes(BYTES if most == resource.RLIM_INFINITY else min(BYTES, most))
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
            atomic_file.remove(path)
    except OSError as error:
        return _failure(folder, step, error)
    return {**room(folder), "same": same}


def _failure(path: str, step: str, error: OSError) -> dict[str, object]:
    name = errno.errorcode.get(error.errno or 0, "?")
    return {"path": path, "step": step, "error": name, "why": error.strerror}


@frozen
class FolderCheck:
    """The check of one folder."""

    NAME: str
    what: str  # the folder's name in messages
    of: Callable[[RunNeeds], str]  # returns its path
    writes: bool  # the probe writes a file there
    full: Grade  # grade of a folder without room
    remedy: str = _HANGS
    odd_alone: bool = False  # report an unusable folder only if some node can use it
    LIMIT: float = LIMIT  # seconds

    @property
    def LATE(self) -> Finding:  # noqa: N802
        slow = f"writing and reading a small file in {self.what} took more than {LIMIT:g} s"
        mute = f"{self.what} did not answer within {LIMIT:g} s"
        return Finding(self.NAME, Grade.FAIL, slow if self.writes else mute, self.remedy)

    def probe(self, request: RunNeeds) -> object:
        path = self.of(request)
        if self.writes:
            return written(path)
        return room(path) if path else None

    def judge(self, request: RunNeeds, readings: Readings) -> Findings:
        """Fail if the folder cannot be used. Grade a folder without room with ``full``."""
        exists_somewhere = any(
            isinstance(reading, dict) and "error" not in reading for reading in readings.values()
        )
        for node, reading in readings.items():
            for finding in self._of_node(request, reading):
                if exists_somewhere or not self.odd_alone or finding.verdict != Grade.FAIL:
                    yield node, finding

    def _of_node(self, request: RunNeeds, reading: object) -> Iterator[Finding]:
        limits, where = chosen(request.limits), f"{self.what} {text(reading, 'path')}"
        error = text(reading, "error")
        if error:
            message = f"cannot {text(reading, 'step')} {where}: {text(reading, 'why')} ({error})"
            remedy = _REMEDIES.get(error, "look at the folder on the node")
            yield Finding(self.NAME, Grade.FAIL, message, remedy)
            return
        if isinstance(reading, dict) and reading.get("same") is False:
            message = f"data written to {where} was different when read back"
            yield Finding(self.NAME, Grade.FAIL, message, "the disk or the file server corrupts data: dmesg")
        free, size, files = (number(reading, name) for name in ("free", "size", "files"))
        if free is not None and free < limits["disk_free"] * 2**30:
            message = f"{where} has {gibibytes(free)} free of {gibibytes(size or 0)}"
            message += f"; limit {limits['disk_free']:g} GiB"
            yield Finding(self.NAME, self.full, message, _REMEDIES["ENOSPC"])
        if files is not None and files < limits["inodes_free"]:
            message = f"{where} has room for {files:.0f} more files; limit {limits['inodes_free']:.0f}"
            yield Finding(self.NAME, self.full, message, "many small files: remove some (df -i)")


# Holds the ranks' output.
RUN_DIRECTORY = FolderCheck(
    "run-directory", "the run directory", lambda request: request.run_dir, True, Grade.WARN
)
# Ranks start in it.
WORKING_DIRECTORY = FolderCheck(
    "working-directory", "the working directory", lambda request: request.cwd, False, Grade.PASS
)
# Compilers and data loaders need room there.
TEMPORARY = FolderCheck(
    "temporary",
    "the temporary directory",
    lambda request: variables().get("TMPDIR") or "/tmp",
    True,
    Grade.WARN,
    "the disk hangs on this node: dmesg; then reboot the node",
)
# torch and other programs keep their caches in it.
HOME = FolderCheck(
    "home", "the home directory", lambda request: request.home, False, Grade.WARN, odd_alone=True
)
