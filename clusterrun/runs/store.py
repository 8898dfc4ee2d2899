"""The runs on disk: their ids, records and states below one home.

``$CLUSTERRUN_HOME/runs/<run id>/`` holds all files of a run. ``live/<run id>`` is an empty file. It exists
from before the run is queued until its end is first recorded. ``status`` uses it to read only the live runs
and a few recent runs of many thousand. A missing file in ``live`` loses no run.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator

from clusterrun.atomic_file import end_of
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, encode_set
from clusterrun.model.errors import ClusterrunError, NoSuchRun
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.nearest import nearest
from clusterrun.model.paths import RunPaths
from clusterrun.model.preflight_report import Report
from clusterrun.model.record import OrphanReport, RunRecord, RunState, RunStatus
from clusterrun.model.run_words import JOB_ID, LAST, RUN_ID, default_name, slurm_job
from clusterrun.runs import private_files
from clusterrun.runs.run_documents import MOST_REPORT_BYTES, read_document

# Digits. Slurm's job ids in a federation use 32 bits.
LONGEST = 20


@frozen
class SuccessorJob:
    """``successor.json`` and ``next.json``:

    a job of the run. It is only a hint, since ranks may write it too.
    """

    job_id: str
    excluded: tuple[str, ...] = ()
    format: int = contract.FORMAT

    def __post_init__(self) -> None:
        plain = self.job_id.replace("_", "", 1)
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= LONGEST):
            raise ValueError(f"{self.job_id[:40]!r} is not a job")


@frozen
class SuccessorJobs:
    """The further jobs of a run."""

    job_id: str = ""  # the newest job that has started after the first; '': none
    waiting: str = ""  # the job that waits for its end; '': none
    damage: str = ""  # why a file cannot be read


def further_jobs(paths: RunPaths) -> SuccessorJobs:
    """Return the jobs that the files name. A damaged file does not affect the other file."""
    jobs, damage = [], ""
    for path in (paths.successor, paths.next):
        try:
            job = read_document(SuccessorJob, path)
            jobs.append(job.job_id if job else "")
        except ClusterrunError as error:
            jobs.append("")
            damage = damage or error.seen
    started, waiting = jobs
    return SuccessorJobs(started, "" if waiting == started else waiting, damage)


_SORTED_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_NAME_AT = len("20261120-074500-k3f9-")


def run_id(name: str, now: float, chance: bytes) -> str:
    """Return a run id that sorts by time to the millisecond (UTC): ``20261120-074500-k3f9-train``."""
    part = int(now % 1 * 1024)
    tag = "".join(_SORTED_DIGITS[number % 32] for number in (part // 32, part, chance[0], chance[1]))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{tag}-{file_name(name)}"


def file_name(name: str) -> str:
    """Return a run's name for a path: at most 32 ASCII letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:32].lstrip("-.") or "run"


def name_of(run_id: str) -> str:
    return run_id[_NAME_AT:]


# Part of the reason of a run whose end no source has reported.
FORGOTTEN = "Slurm no longer knows the job"


def inferred(status: RunStatus) -> bool:
    """Return whether the end of a run follows only from the scheduler's silence about its job."""
    return FORGOTTEN in status.reason


# Prefix of the lines that the batch script itself prints.
OURS = "clusterrun: "
LAST_BYTES = 4096


@frozen
class EndedRun:
    """``ended.json``: how a run ended, recorded because Slurm forgets a job after minutes."""

    at: float
    # It names the job that showed the end. In a chain this may be the next job, which never started.
    status: RunStatus
    job_id: str = ""  # the newest job that had started; '' in a file of an older version
    format: int = contract.FORMAT

    @property
    def started_job(self) -> str:
        return self.job_id or self.status.job_id

    @property
    def inferred(self) -> bool:
        return inferred(self.status)


@frozen
class CheckedFor:
    """``checked.json``: the subject of the pre-flight check of a run in an allocation."""

    key: str  # equal for checks that test the same things
    by: str = ""  # the run whose check counted; '': its own
    format: int = contract.FORMAT


class Store:
    """The runs below ``home`` (an absolute path). The first ``claim`` makes the folders."""

    def __init__(self, home: str, other_cluster: Callable[[RunRecord], str] = lambda _: "") -> None:
        """``other_cluster`` returns the cluster of a run's jobs; '' if it is the cluster of this machine."""
        self.home = home
        self._other_cluster = other_cluster
        self.runs = os.path.join(home, "runs")
        self.live = os.path.join(home, "live")
        self.cache = os.path.join(home, "cache")
        self._paths: dict[str, RunPaths] = {}

    def paths(self, run_id: str) -> RunPaths:
        paths = self._paths.get(run_id)
        if paths is None:  # cached, since lists use it many times
            paths = self._paths[run_id] = RunPaths(os.path.join(self.runs, run_id))
        return paths

    def claim(self, run_id: str, sync: bool = True) -> None:
        """Make the run directory of a new run. Raise ``DiskRefused``, also if the id exists already."""
        for folder in (self.home, self.runs, self.live):
            private_files.private_folder(folder)
        path = self.paths(run_id).run_dir
        try:
            private_files.new_folder(path, sync)
        except OSError as error:
            raise private_files.refusal(path, error) from error

    def discard(self, run_id: str) -> None:
        """Remove a run that was never queued, with all its files."""
        import shutil

        shutil.rmtree(self.paths(run_id).run_dir, ignore_errors=True)
        self._forget_live(run_id)

    def remove(self, run_id: str) -> bool:
        """Remove a run that has ended.

        Return False if it does not exist any more. Raise ``ClusterrunError``.
        """
        from clusterrun.runs.removal import remove_run  # only this method needs it

        removed = remove_run(self.paths(run_id).run_dir)
        self._forget_live(run_id)
        return removed

    def _forget_live(self, run_id: str) -> None:
        private_files.removed(os.path.join(self.live, run_id))

    def save(self, record: RunRecord, sync: bool = True) -> None:
        """Write ``record.json`` whole, and mark the run as live.

        ``sync`` makes the record survive a crash.
        """
        private_files.empty_file(os.path.join(self.live, record.run_id))
        private_files.write_whole(self.paths(record.run_id).record, _text(encode_set(record)), sync=sync)

    def read(self, run_id: str) -> RunRecord:
        """Return the record of a run with its newest job that has started. Raise ``NoSuchRun``."""
        record, job_id = self._recorded(run_id), self.further_jobs(run_id).job_id
        return replace(record, job_id=job_id) if job_id else record

    def further_jobs(self, run_id: str) -> SuccessorJobs:
        return further_jobs(self.paths(run_id))

    def _recorded(self, run_id: str) -> RunRecord:
        """Return the record as submitted. Raise ``NoSuchRun``, ``BadDocument`` or ``DiskRefused``."""
        paths = self.paths(run_id)
        if not os.path.lexists(paths.run_dir):
            message = f"there is no run {run_id} in {self.runs}"
            raise NoSuchRun(message, "clusterrun status shows the runs there are")
        private_files.trust(paths.run_dir, links=False)
        record = read_document(RunRecord, paths.record)
        if record is None:
            raise BadDocument(f"{paths.record} is missing: the submission did not get that far")
        if record.run_id != run_id:
            raise BadDocument(f"{paths.record} is the record of another run, {record.run_id}")
        return record

    def state(self, run_id: str) -> RunState | None:
        """Return the coordinator's newest state; None if it has not written any. Raise ``BadDocument``."""
        return read_document(RunState, self.paths(run_id).state)

    def ended(self, run_id: str) -> EndedRun | None:
        """Return the end of the run if a client recorded it. Raise ``BadDocument``."""
        return read_document(EndedRun, self.paths(run_id).ended)

    def report(self, run_id: str, attempt: int) -> Report | None:
        """Return the pre-flight report of an attempt; None without a verdict. Raise ``BadDocument``."""
        return read_document(Report, self.paths(run_id).attempt(attempt).preflight, MOST_REPORT_BYTES)

    def checked_for(self, run_id: str) -> CheckedFor | None:
        """Return the subject of the check of a run in an allocation. Raise ``BadDocument``."""
        return read_document(CheckedFor, self.paths(run_id).checked_for)

    def settle(self, status: RunStatus, now: float, job_id: str) -> None:
        """Record the end of a run whose newest started job is ``job_id``. Raise ``DiskRefused``.

        The file is not synced. If a crash damages it, the end is determined again.
        """
        text = _text(encode_set(EndedRun(now, status, job_id)))
        private_files.write_whole(self.paths(status.run_id).ended, text, sync=False)
        self._forget_live(status.run_id)

    def reopen(self, run_id: str) -> None:
        """Remove the record of the end of a run that is still live. Raise ``DiskRefused``."""
        private_files.empty_file(os.path.join(self.live, run_id))
        private_files.removed(self.paths(run_id).ended)

    def orphan_report(self, run_id: str) -> OrphanReport | None:
        """Return the newest message of agents whose coordinator is dead; None if none can be read."""
        try:
            return read_document(OrphanReport, self.paths(run_id).orphan_report)
        except ClusterrunError:
            return None

    def script_error(self, run_id: str) -> str:
        """Return the reason that the batch script printed last for its own end; '' if it printed none."""
        output = end_of(self.paths(run_id).job_output, LAST_BYTES)[0].decode("utf-8", "replace")
        last = output.rstrip("\n").rpartition("\n")[2]
        return last.removeprefix(OURS) if last.startswith(OURS) else ""

    def ask_cancel(self, run_id: str, kill_wait: float | None = None) -> None:
        """Write the request to end the run. ``kill_wait`` is the time from SIGTERM to SIGKILL in seconds."""
        text = "" if kill_wait is None else json.dumps({"kill_wait": kill_wait}) + "\n"
        private_files.write_whole(self.paths(run_id).cancel, text)

    def cancel_asked(self, run_id: str) -> bool:
        return os.path.exists(self.paths(run_id).cancel)

    def ids(self) -> list[str]:
        """Return every run id, newest first. No run is opened."""
        return _listed(self.runs)

    def current(self, recent: int) -> list[str]:
        """Return the ids of all live runs and of the newest ``recent`` runs, newest first."""
        ids = self.ids()
        alive = set(_listed(self.live))
        return [run_id for index, run_id in enumerate(ids) if index < recent or run_id in alive]

    def find(self, word: str) -> str:
        """Return the run that an id, a unique prefix of one, ``last``, a job id, a name or a folder means.

        A step of a job (41.0, 41.batch) means the run of the job.
        A name may have its original form or its form in run ids: ``pkg/train`` or ``pkg_train``.
        Raise ``NoSuchRun`` if no run matches.
        """
        ids = self.ids()
        if word in ids:
            return word
        if word == LAST and ids:
            return ids[0]
        folder, name = os.path.split(os.path.realpath(word))
        if "/" in word and name in ids and folder == os.path.realpath(self.runs):
            return name
        if run_of_job := self._by_job(word, ids) or self._by_job(slurm_job(word), ids):
            return run_of_job
        if named := next(self._named(word, ids), ""):
            return named
        if named_in_id := next((run_id for run_id in ids if name_of(run_id) == word), ""):
            return named_in_id
        # Digits alone are a job number. As the start of an id, "2" would match every single run.
        is_start = bool(word) and not JOB_ID.fullmatch(word)
        starts = [run_id for run_id in ids if is_start and run_id.startswith(word)]
        if len(starts) == 1:
            return starts[0]
        raise _unknown(word, starts, ids)

    def newest_of_job(self, job_id: str) -> str:
        """Return the newest run that had the job ``job_id`` or waits for it; '' if there is none."""
        return self._by_job(job_id, self.ids())

    def _by_job(self, word: str, ids: list[str]) -> str:
        """Return the newest run that has the job ``word``, on this cluster first; '' if there is none."""
        if not JOB_ID.fullmatch(word):
            return ""
        elsewhere = ""
        for record in self._records(ids):
            further = self.further_jobs(record.run_id)
            if word not in (record.job_id, further.job_id, further.waiting, *record.others):
                continue
            if not self._other_cluster(record):
                return record.run_id
            elsewhere = elsewhere or record.run_id
        return elsewhere or next((run_id for run_id in ids if word in self._earlier_jobs(run_id)), "")

    def _earlier_jobs(self, run_id: str) -> set[str]:
        """Return the jobs of a long chain. Other files hold only its first and its newest jobs."""
        if not os.path.exists(self.paths(run_id).successor):
            return set()
        try:
            state = self.state(run_id)
        except (BadDocument, private_files.DiskRefused):
            return set()
        return {attempt.job_id for attempt in state.attempts} if state else set()

    def _named(self, word: str, ids: list[str]) -> Iterator[str]:
        name_in_id = file_name(word)
        same = [run_id for run_id in ids if name_of(run_id) == name_in_id]
        return (record.run_id for record in self._records(same) if record.name == word)

    def live_of_name(self, name: str) -> list[str]:
        """Return the ids of the runs of this name without a recorded end, newest first."""
        return list(self._named(name, self.current(0)))

    def _records(self, ids: list[str]) -> Iterator[RunRecord]:
        for run_id in ids:
            try:
                yield self._recorded(run_id)
            except (BadDocument, private_files.DiskRefused, NoSuchRun):
                continue


def _unknown(word: str, starts: list[str], ids: list[str]) -> NoSuchRun:
    """Return the error for a word that matches no run, or several."""
    if starts:
        listing = ", ".join(starts[:5]) + (", …" if len(starts) > 5 else "")
        return NoSuchRun(f"{word!r} is the start of {len(starts)} run ids: {listing}", "give more of the id")
    if not ids:
        return NoSuchRun(f"there is no run {word!r}: there are no runs yet", "clusterrun submit starts one")
    candidates = dict.fromkeys([name_of(run_id) for run_id in ids] + ids + [LAST])
    similar = nearest(word, candidates, most=3)
    of_script = file_name(default_name((word,)))
    if of_script in candidates:
        similar = [of_script]
    hint = f"did you mean {' or '.join(similar)}? " if similar else ""
    return NoSuchRun(f"there is no run {word!r}", hint + "clusterrun status shows the runs there are")


def _listed(folder: str) -> list[str]:
    return sorted((name for name in private_files.names_in(folder) if RUN_ID.fullmatch(name)), reverse=True)


def _text(document: object) -> str:
    return json.dumps(document, indent=1) + "\n"
