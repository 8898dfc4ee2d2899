"""Shares one answer of squeue among all processes of a user: a file, a lock, a minimum interval.

Twenty ``status`` at once, or ``watch -n1``, are one question to the controller. One that fails is
kept too and asked again less and less often, and what was answered before it stays known, with its age.
"""

from __future__ import annotations

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

LONGEST_PAUSE = 30.0
"""Seconds between two questions to a controller that does not answer, at most."""
LOCK_SECONDS = 35.0
"""How long one process lets another one ask: a little more than a question may take."""
LOCK_PAUSE = 0.02
SKEW_SECONDS = 2.0
"""A login node's clock may be that far ahead of the one that wrote the file."""


@frozen
class JobsAnswer:
    """What Slurm said of this user's jobs at ``at`` (0: nothing yet), and of a question in vain since."""

    at: float
    rows: tuple[JobRow, ...] = ()
    failed_at: float = 0.0
    failures: int = 0
    failure: str = ""
    remedy: str = ""
    format: int = contract.FORMAT


class SharedJobs:
    """This user's jobs, from the file below ``folder`` where it is new enough, else asked for.

    ``floor`` are seconds between two questions, whoever asks: a site's wish. Without a folder that
    can be trusted each command asks by itself.
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
        self._path = os.path.join(folder, f"squeue-{_cluster(environment)}.json")
        self._ask = ask
        self._clock = clock
        self._floor = floor

    def jobs(self, oldest: float = 0.0, since: float = 0.0) -> JobsAnswer:
        """An answer at most ``oldest`` seconds old, from ``since`` or later; older with ``failure``."""
        wanted, began = max(self._floor, oldest), self._clock.now()
        known = self._read()
        if self._new(known, wanted, since):
            return known
        with turn(self._path, self._clock):
            known = self._read()  # whoever had the turn before may have asked for us
            waited = self._clock.now() - began
            return known if self._new(known, max(wanted, waited), since) else self._asked(known)

    def _new(self, known: JobsAnswer, oldest: float, since: float) -> bool:
        now = self._clock.now()
        if known.failure:
            pause: float = min(LONGEST_PAUSE, self._floor * 2 ** min(known.failures, 10))
            return -SKEW_SECONDS <= now - known.failed_at < pause
        return -SKEW_SECONDS <= now - known.at <= oldest and known.at >= since

    def _asked(self, known: JobsAnswer) -> JobsAnswer:
        try:
            news = JobsAnswer(self._clock.now(), self._ask())
        except SchedulerError as error:
            told = {"failure": error.seen, "remedy": error.remedy, "failures": known.failures + 1}
            news = replace(known, failed_at=self._clock.now(), **told)
        self._write(news)
        return news

    def _read(self) -> JobsAnswer:
        try:
            content = own_content(self._path)
            return decode(JobsAnswer, json.loads(content)) if content else JobsAnswer(0.0)
        except (OSError, ValueError, RecursionError, ClusterrunError):
            return JobsAnswer(0.0)

    def _write(self, news: JobsAnswer) -> None:
        with suppress(DiskRefused):  # it is a convenience: a full disk must not keep anybody from an answer
            private_folder(self._folder)
            write_whole(self._path, json.dumps(encode(news), separators=(",", ":")), sync=False)


@contextmanager
def turn(path: str, clock: Clock) -> Iterator[None]:
    """Hold the lock, if the file system has locks; waits for it a limited time."""
    import fcntl

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


def _cluster(environment: Mapping[str, str]) -> str:
    """A name for who is asked, and by whom: another configuration is another cluster."""
    parts = [environment.get(name, "") for name in ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")]
    return f"{zlib.crc32(chr(0).join([*parts, str(os.getuid())]).encode('utf-8', 'surrogateescape')):08x}"
