"""Read and write the files of a run directory, atomically and for their owner only; decides nothing.

No file is written through a symbolic link. Only their owner can read the files, whatever the umask.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress

from clusterrun.atomic_file import draft_prefix, remove, sync_names, write_all, write_whole
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.orders import Orders
from clusterrun.model.paths import AttemptPaths, RunPaths
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, TypeVar

    from clusterrun.model.record import RunState

    T = TypeVar("T")

# A starting process waits this long for a failing file system.
OPENING_SECONDS = 60.0
RETRY_SECONDS = 0.5
# Errors of a wrong path, not of a failing file system.
_NO_PLACE = (NotADirectoryError, IsADirectoryError)
# The same, for a file that was not read before on this node.
_NEVER_SEEN = (FileNotFoundError, PermissionError)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OF_A_DOCUMENT = 64 * 1024 * 1024
# Bytes. A disk with less space has no block left for a line.
_NO_ROOM = 4096
# Written once into a log that became shorter.
_EMPTIED = (
    b"clusterrun: this log was emptied: a program opened /dev/stdout or /dev/stderr to write; "
    b"use >&2, or >> /dev/stderr\n"
)
# Growths of each log that are kept in memory: half a minute of a log that grows all the time.
_MARKS = 32


class BadRunDirectory(ClusterrunError):
    """The run directory is missing, belongs to others, or lacks a file."""


def patiently(look: Callable[[], T], seconds: float = OPENING_SECONDS) -> T:
    """Return ``look()``, retried while a file system fails. Raise the last error after ``seconds``.

    NFS servers that restart, full quotas and failing disks return EIO, ESTALE, EDQUOT … for some seconds.
    """
    until, is_noted = steady() + seconds, False
    while True:
        try:
            return look()
        except (OSError, ClusterrunError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or isinstance(cause, _NEVER_SEEN) or not may_pass(cause):
                raise
            if steady() >= until:
                raise
            if not is_noted:
                say(f"clusterrun: {in_words(cause)}; it is tried again for {seconds:g} s")
            is_noted = True
        time.sleep(RETRY_SECONDS)


def may_pass(error: OSError) -> bool:
    return not isinstance(error, _NO_PLACE)


def in_words(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error} on {os.uname().nodename}"


def check_run_directory(path: str) -> None:
    """Raise ``BadRunDirectory`` for a run directory that others could have prepared."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadRunDirectory(
            f"the run directory {path} cannot be reached on {os.uname().nodename}: {error.strerror}",
            "CLUSTERRUN_HOME must lie on a file system that the compute nodes share",
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadRunDirectory(
            f"the run directory {path} belongs to, or may be written by, somebody else",
            f"chmod 700 {path}, or set CLUSTERRUN_HOME to a directory of your own",
        )


def read_orders(paths: RunPaths) -> Orders:
    """Return the orders of the run. Raise ``BadRunDirectory`` if they cannot be read."""
    try:
        return decode(Orders, json.loads(_content(paths.orders)))
    except OSError as error:
        raise BadRunDirectory(
            f"{paths.orders} cannot be read on {os.uname().nodename}: {error.strerror}",
            "CLUSTERRUN_HOME must lie on a file system that the compute nodes share",
        ) from error
    except (ValueError, BadDocument) as error:
        message = f"{paths.orders} is not what this program reads: {error}"
        raise BadRunDirectory(message, "submit again") from error


def read_state(paths: RunPaths) -> RunState | None:
    """Return the state that an earlier coordinator wrote; None if it is missing or damaged.

    Raise ``OSError`` if the file system fails.
    """
    from clusterrun.model.record import RunState  # only coordinators need it

    try:
        return decode(RunState, json.loads(_content(paths.state)))
    except (FileNotFoundError, ValueError, BadDocument):
        return None


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_OF_A_DOCUMENT)


def drop_drafts(path: str) -> None:
    """Remove the drafts of writers of ``path`` that died: a node lost power, a process was killed."""
    folder, name = os.path.split(path)
    try:
        drafts = [entry for entry in os.listdir(folder) if entry.startswith(draft_prefix(name))]
    except OSError:
        return
    for draft in drafts:
        remove(os.path.join(folder, draft))


def write_state(paths: RunPaths, state: RunState) -> None:
    write_whole(paths.state, json.dumps(encode(state)).encode() + b"\n")


def highest_attempt(paths: RunPaths) -> int:
    """Return the highest attempt number in the run directory, -1 if there is none. Raise ``OSError``."""
    try:
        names = os.listdir(paths.attempts)
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def claim_attempt(paths: RunPaths, epoch: int) -> bool:
    """Claim attempt ``epoch`` for this coordinator. Return False if another has it. Raise ``OSError``.

    The attempt is claimed when its folder exists. A later failure is no reason to retry.
    """
    with suppress(FileExistsError):
        os.mkdir(paths.attempts, 0o700)
    try:
        os.mkdir(paths.attempt(epoch).folder, 0o700)
    except FileExistsError:
        return False
    try:
        sync_names(paths.attempts)
    except OSError as error:
        say(f"clusterrun: {in_words(error)}; attempt {epoch} goes on")
    return True


def open_log(path: str) -> int:
    """Return a descriptor that appends to ``path``, which is created if needed. Raise ``OSError``."""
    return os.open(path, _APPEND, 0o600)


def log_or_nothing(path: str) -> int:
    """Like ``open_log``, but return /dev/null if the log cannot be opened: a full disk stops no process."""
    try:
        return open_log(path)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def no_room(folder: str) -> str:
    """Return why the disk of ``folder`` takes no more data; '' if there is room."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return error.strerror or str(error)
    # Some file systems do not count files. They report 0 files, and 0 free ones.
    full = disk.f_bavail * disk.f_frsize < _NO_ROOM or (disk.f_files > 0 and disk.f_favail == 0)
    return "No space left on device" if full else ""


class GrowthIndex:
    """Writes ``node-KKKK.index``: the sizes of all logs over time, with one line for each growth of a file.

    ``watched`` maps (rank, ``"o"`` or ``"e"``) to the descriptor of that log. More entries may be added.
    ``grown`` holds the newest lines for each log: the time and the size. ``trouble`` is why the last line
    could not be written.
    """

    def __init__(self, paths: AttemptPaths, node: int, watched: dict[tuple[int, str], int]) -> None:
        self._fd = open_log(paths.index(node))
        self._watched = watched
        self._sizes: dict[tuple[int, str], int] = {}
        self._emptied: set[tuple[int, str]] = set()
        self.grown: dict[tuple[int, str], list[tuple[float, int]]] = {}
        self.trouble = ""

    def note(self, wall: float) -> None:
        """Write a line for every file that grew since the last call. Failed lines are written next time."""
        try:
            sizes = {key: os.fstat(fd).st_size for key, fd in self._watched.items()}
            for key, size in sizes.items():
                if size < self._sizes.get(key, 0) and key not in self._emptied:
                    self._emptied.add(key)
                    write_all(self._watched[key], _EMPTIED)
            grown = {key: size for key, size in sizes.items() if size != self._sizes.get(key, 0)}
            lines = [f"{wall:.3f} {rank} {stream} {size}\n" for (rank, stream), size in grown.items()]
            if lines:
                write_all(self._fd, "".join(lines).encode())
            self._sizes.update(grown)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return
        for key, size in grown.items():
            marks = self.grown.setdefault(key, [])
            marks.append((wall, size))
            del marks[:-_MARKS]

    def close(self) -> None:
        for fd in (self._fd, *self._watched.values()):
            os.close(fd)
