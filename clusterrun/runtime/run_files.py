"""Files of a run directory, written whole and to one owner only; knows their forms, decides nothing.

Every descriptor is opened without following a link; what is written is visible to its owner alone,
whatever the umask.
"""

from __future__ import annotations

import json
import os
import stat
import time

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

OPENING_SECONDS = 60.0
"""How long a process that begins waits for a file system in trouble."""
RETRY_SECONDS = 0.5
_NO_PLACE = (NotADirectoryError, IsADirectoryError)
"""Errors of a path that is wrong, not of a file system in trouble."""
_NEVER_SEEN = (FileNotFoundError, PermissionError)
"""The same, of a file that was not read before on this node."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OF_A_DOCUMENT = 64 * 1024 * 1024
_NO_ROOM = 4096
"""Bytes: a disk with less has no block left for a line."""
# Written once into a log that became shorter.
_EMPTIED = (
    b"clusterrun: this log was emptied: a program opened /dev/stdout or /dev/stderr to write; "
    b"use >&2, or >> /dev/stderr\n"
)
_MARKS = 32
"""Growths of each log that are kept in memory: half a minute of one that grows all the time."""


class BadRunDirectory(ClusterrunError):
    """The run directory is not there, not ours alone, or does not hold what it should."""


def patiently(look: Callable[[], T], seconds: float = OPENING_SECONDS) -> T:
    """``look()``, tried again while a file system is in trouble. Raises what it raised last.

    NFS servers that restart, full quotas and failing disks answer EIO, ESTALE, EDQUOT … for some seconds.
    """
    until, told = steady() + seconds, False
    while True:
        try:
            return look()
        except (OSError, ClusterrunError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or isinstance(cause, _NEVER_SEEN) or not may_pass(cause):
                raise
            if steady() >= until:
                raise
            if not told:
                say(f"clusterrun: {in_words(cause)}; it is tried again for {seconds:g} s")
            told = True
        time.sleep(RETRY_SECONDS)


def may_pass(error: OSError) -> bool:
    return not isinstance(error, _NO_PLACE)


def in_words(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error} on {os.uname().nodename}"


def check_run_directory(path: str) -> None:
    """Refuse a run directory that others could have prepared. Raises ``BadRunDirectory``."""
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
    """What the nodes are to do. Raises ``BadRunDirectory``."""
    try:
        return decode(Orders, json.loads(_content(paths.orders)))
    except OSError as error:
        raise BadRunDirectory(
            f"{paths.orders} cannot be read on {os.uname().nodename}: {error.strerror}",
            "CLUSTERRUN_HOME must lie on a file system that the compute nodes share",
        ) from error
    except (ValueError, BadDocument) as error:
        seen = f"{paths.orders} is not what this program reads: {error}"
        raise BadRunDirectory(seen, "submit again") from error


def read_state(paths: RunPaths) -> RunState | None:
    """What an earlier coordinator left; None if there is nothing or it is damaged. Raises ``OSError``."""
    from clusterrun.model.record import RunState  # by coordinators alone

    try:
        return decode(RunState, json.loads(_content(paths.state)))
    except (FileNotFoundError, ValueError, BadDocument):
        return None


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_OF_A_DOCUMENT)


def drop_drafts(path: str) -> None:
    """Remove what writers of ``path`` have left that died over it: a node without power, a killed process."""
    folder, name = os.path.split(path)
    try:
        drafts = [one for one in os.listdir(folder) if one.startswith(draft_prefix(name))]
    except OSError:
        return
    for draft in drafts:
        remove(os.path.join(folder, draft))


def write_state(paths: RunPaths, state: RunState) -> None:
    write_whole(paths.state, json.dumps(encode(state)).encode() + b"\n")


def highest_attempt(paths: RunPaths) -> int:
    """The highest attempt number in the run directory, -1 where there is none. Raises ``OSError``."""
    try:
        names = os.listdir(paths.attempts)
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def claim_attempt(paths: RunPaths, epoch: int) -> bool:
    """Take attempt ``epoch`` for this coordinator; False if somebody has it. Raises ``OSError``.

    Once the folder is made the attempt is taken: what fails after that is no reason to try again.
    """
    try:
        os.mkdir(paths.attempts, 0o700)
    except FileExistsError:
        pass
    try:
        os.mkdir(paths.attempt(epoch).folder, 0o700)
    except FileExistsError:
        return False
    try:
        sync_names(paths.attempts)
    except OSError as error:
        say(f"clusterrun: {in_words(error)}; attempt {epoch} goes on")
    return True


def claim_shape(paths: RunPaths, shape: int) -> bool:
    """Take the run for one of its shapes; False if another one has it. Raises ``OSError``.

    The claim is the link to the shape's orders, so there is nothing between the two that a crash could
    leave undone. A file server may make the link and lose its answer: what it says counts.
    """
    ours = os.path.relpath(paths.shape(shape).orders, paths.run_dir)
    try:
        os.symlink(ours, paths.orders)
        sync_names(paths.run_dir)
    except FileExistsError:
        pass
    return os.readlink(paths.orders) == ours


def open_log(path: str) -> int:
    """A descriptor that appends to ``path``, made if need be. Raises ``OSError``."""
    return os.open(path, _APPEND, 0o600)


def log_or_nothing(path: str) -> int:
    """As ``open_log``; /dev/null where the log cannot be opened, so that a full disk stops no process."""
    try:
        return open_log(path)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def no_room(folder: str) -> str:
    """Why nothing more can be written where ``folder`` is, in words; '' where there is room."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return error.strerror or str(error)
    # Some file systems count no files: then there are none, and none are free.
    full = disk.f_bavail * disk.f_frsize < _NO_ROOM or (disk.f_files > 0 and disk.f_favail == 0)
    return "No space left on device" if full else ""


class GrowthIndex:
    """``node-KKKK.index``: which byte of which log was there when; a line for each growth of a file.

    ``watched`` maps (rank, ``"o"`` or ``"e"``) to the descriptor of that log; it may still grow.
    ``grown`` holds the newest of these lines for each log: when it was seen, and its size then.
    ``trouble`` is why the last line could not be written.
    """

    def __init__(self, paths: AttemptPaths, node: int, watched: dict[tuple[int, str], int]) -> None:
        self._fd = open_log(paths.index(node))
        self._watched = watched
        self._sizes: dict[tuple[int, str], int] = {}
        self._emptied: set[tuple[int, str]] = set()
        self.grown: dict[tuple[int, str], list[tuple[float, int]]] = {}
        self.trouble = ""

    def note(self, wall: float) -> None:
        """Write a line for every file that grew since the last time; what fails is written next time."""
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
