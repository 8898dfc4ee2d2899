"""Share one answer of squeue among all processes of a user: a file, a lock, a minimum interval.

Twenty ``status`` commands at once, or ``watch -n1``, send one query to the controller. A failed query is
cached too, and retried at growing intervals. The last successful answer stays available with its age.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from clusterrun.model import contract
from clusterrun.model.document import decode, encode
from clusterrun.model.errors import ClusterrunError, SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.runs.private_files import DiskRefused, own_content, private_folder, write_whole
from clusterrun.slurm.queries import JobRow
from clusterrun.system import Clock

# Longest interval in seconds between two queries to a controller that does not answer.
LONGEST_PAUSE = 30.0
# Seconds that a process waits for the query of another one: a little more than the limit of a query.
LOCK_SECONDS = 35.0
LOCK_PAUSE = 0.02
# Allowed clock difference between a login node and the machine that wrote the file.
SKEW_SECONDS = 2.0


@frozen
class JobsAnswer:
    """This user's jobs, and the failure of a later query. Times are seconds since the epoch."""

    at: float  # time of the answer; 0 if there is none yet
    rows: tuple[JobRow, ...] = ()
    failed_at: float = 0.0  # time of the last failed query
    failures: int = 0  # failed queries in a row
    failure: str = ""  # the problem of the last one; '' if it succeeded
    remedy: str = ""
    format: int = contract.FORMAT


class SharedJobs:
    """Returns this user's jobs from a file below ``folder`` if it is new enough, else from a query.

    ``floor`` is the site's minimum of seconds between two queries of all processes together. Without a
    folder that can be trusted every command sends its own query.
    """

    def __init__(
        self,
        folder: str,
        environment: Mapping[str, str],
        ask: Callable[[], tuple[JobRow, ...]],
        clock: Clock,
        floor: float,
    ) -> None:
        self._folder = folder
        # Another configuration means another cluster, with a file of its own.
        parts = [environment.get(name, "") for name in ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")]
        identity = chr(0).join([*parts, str(os.getuid())]).encode("utf-8", "surrogateescape")
        self._path = os.path.join(folder, f"squeue-{zlib.crc32(identity):08x}.json")
        self._ask = ask
        self._clock = clock
        self._floor = floor

    def jobs(self, oldest: float = 0.0, since: float = 0.0) -> JobsAnswer:
        """Return an answer that is at most ``oldest`` seconds old and not older than ``since``.

        If the query fails, return the last answer with ``failure`` set.
        """
        max_age, began = max(self._floor, oldest), self._clock.now()
        cached = self._read()
        if self._new(cached, max_age, since):
            return cached
        with turn(self._path, self._clock):
            cached = self._read()  # the previous holder of the lock may have updated it
            waited = self._clock.now() - began
            return cached if self._new(cached, max(max_age, waited), since) else self._asked(cached)

    def _new(self, cached: JobsAnswer, oldest: float, since: float) -> bool:
        now = self._clock.now()
        if cached.failure:
            pause: float = min(LONGEST_PAUSE, self._floor * 2 ** min(cached.failures, 10))
            return -SKEW_SECONDS <= now - cached.failed_at < pause
        return -SKEW_SECONDS <= now - cached.at <= oldest and cached.at >= since

    def _asked(self, cached: JobsAnswer) -> JobsAnswer:
        try:
            news = JobsAnswer(self._clock.now(), self._ask())
        except SchedulerError as error:
            failure = {"failure": error.seen, "remedy": error.remedy, "failures": cached.failures + 1}
            news = replace(cached, failed_at=self._clock.now(), **failure)
        with suppress(DiskRefused):  # the cache is optional, also on a full disk
            private_folder(self._folder)
            write_whole(self._path, json.dumps(encode(news), separators=(",", ":")), sync=False)
        return news

    def _read(self) -> JobsAnswer:
        try:
            content = own_content(self._path)
            return decode(JobsAnswer, json.loads(content)) if content else JobsAnswer(0.0)
        except (OSError, ValueError, RecursionError, ClusterrunError):
            return JobsAnswer(0.0)


@contextmanager
def turn(path: str, clock: Clock) -> Iterator[None]:
    """Hold the lock, if the file system supports locks. The wait for it has a limit."""
    try:
        private_folder(os.path.dirname(path))
        handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, DiskRefused):
        yield
        return
    try:
        until = clock.monotonic() + LOCK_SECONDS
        while clock.monotonic() < until:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                clock.sleep(LOCK_PAUSE)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)
