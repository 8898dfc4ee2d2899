"""The runs on disk: their ids, records and states below one home.

``$CLUSTERRUN_HOME/runs/<run id>/`` holds each run whole. ``live/<run id>`` is an empty file from
before a run is queued until it was first seen ended: with it, ``status`` looks at the live runs
and a few recent ones however many thousand there are. Losing it loses no run.
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
from clusterrun.model.paths import RunPaths, of_shape
from clusterrun.model.preflight_report import Report
from clusterrun.model.record import LeftBehind, RunRecord, RunState, RunStatus
from clusterrun.model.run_words import JOB_ID, LAST, RUN_ID
from clusterrun.runs import private_files
from clusterrun.runs.run_documents import MOST_REPORT_BYTES, read_document

LONGEST = 20
"""Digits: Slurm's ids of a federation fill 32 bits."""


@frozen
class SuccessorJob:
    """``successor.json``, ``next.json``: a job of the run; a hint, for ranks may write there too."""

    job_id: str
    excluded: tuple[str, ...] = ()
    format: int = contract.FORMAT

    def __post_init__(self) -> None:
        plain = self.job_id.replace("_", "", 1)
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= LONGEST):
            raise ValueError(f"{self.job_id[:40]!r} is not a job")


@frozen
class SuccessorJobs:
    """The newest job that has started beside the first, and the one that waits for its end ('': none)."""

    job_id: str = ""
    waiting: str = ""
    damage: str = ""


def further_jobs(paths: RunPaths) -> SuccessorJobs:
    """What the files say; one that is damaged says nothing and takes nothing from the other."""
    jobs, damage = [], ""
    for path in (paths.successor, paths.next):
        try:
            found = read_document(SuccessorJob, path)
            jobs.append(found.job_id if found else "")
        except ClusterrunError as error:
            jobs.append("")
            damage = damage or error.seen
    started, waiting = jobs
    return SuccessorJobs(started, "" if waiting == started else waiting, damage)


_SORTED_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_NAME_AT = len("20261120-074500-k3f9-")


def run_id(name: str, now: float, chance: bytes) -> str:
    """An id that sorts by time to the millisecond (UTC), a file name: ``20261120-074500-k3f9-train``."""
    part = int(now % 1 * 1024)
    tag = "".join(_SORTED_DIGITS[n % 32] for n in (part // 32, part, chance[0], chance[1]))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{tag}-{file_name(name)}"


def file_name(name: str) -> str:
    """What of a run's name can stand in a path: ASCII letters, digits, ``.``, ``_`` and ``-``, at most 32."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:32].lstrip("-.") or "run"


def name_of(run_id: str) -> str:
    return run_id[_NAME_AT:]


FORGOTTEN = "Slurm no longer knows the job"
"""In the reason of a run whose end nobody told."""


def inferred(status: RunStatus) -> bool:
    """Whether nothing but the scheduler's silence about its job speaks for the end of a run."""
    return FORGOTTEN in status.reason


OURS = "clusterrun: "
"""How the lines begin that the batch script prints of itself."""
LAST_BYTES = 4096


@frozen
class EndedRun:
    """``ended.json``: how a run ended, recorded because Slurm forgets a job after minutes.

    ``status`` names the job that told the end: in a chain this may be the next job, which never started.
    ``job_id`` is the newest job that had started; '' in a file of an older version.
    """

    at: float
    status: RunStatus
    job_id: str = ""
    format: int = contract.FORMAT

    @property
    def started_job(self) -> str:
        return self.job_id or self.status.job_id

    @property
    def inferred(self) -> bool:
        return inferred(self.status)


@frozen
class CheckedFor:
    """``checked.json``: what a pre-flight depends on; ``by``: the run whose check counted ('': its own)."""

    key: str
    by: str = ""
    format: int = contract.FORMAT


class Store:
    """The runs below ``home`` (an absolute path); nothing is made before the first ``claim``."""

    def __init__(self, home: str, other_cluster: Callable[[RunRecord], str] = lambda _: "") -> None:
        """``other_cluster`` names the cluster of a run's jobs, where that is not the one of this machine."""
        self.home = home
        self._other_cluster = other_cluster
        self.runs = os.path.join(home, "runs")
        self.live = os.path.join(home, "live")
        self.cache = os.path.join(home, "cache")
        self._paths: dict[str, RunPaths] = {}

    def paths(self, run_id: str) -> RunPaths:
        known = self._paths.get(run_id)
        if known is None:  # made once: lists ask for them again and again
            known = self._paths[run_id] = RunPaths(os.path.join(self.runs, run_id))
        return known

    def claim(self, run_id: str, sync: bool = True) -> None:
        """Make the run directory of a new run. Raises ``DiskRefused``, also where the id is taken."""
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
        """Remove a run that has ended; False if somebody else has. Raises ``ClusterrunError``."""
        from clusterrun.runs.removal import remove_run  # for this alone

        removed = remove_run(self.paths(run_id).run_dir)
        self._forget_live(run_id)
        return removed

    def _forget_live(self, run_id: str) -> None:
        private_files.removed(os.path.join(self.live, run_id))

    def save(self, record: RunRecord, sync: bool = True) -> None:
        """Write ``record.json`` whole, to outlive a crash: it leads to the job. Mark the run as live."""
        private_files.empty_file(os.path.join(self.live, record.run_id))
        private_files.write_whole(self.paths(record.run_id).record, _text(encode_set(record)), sync=sync)

    def read(self, run_id: str) -> RunRecord:
        """The record of a run, with the newest of its jobs that has started. Raises ``NoSuchRun``."""
        record, job_id = self._recorded(run_id), self.further_jobs(run_id).job_id
        return replace(record, job_id=job_id) if job_id else record

    def shape(self, run_id: str) -> int | None:
        """Which of its shapes a run has begun in; None before that, and where it has but one."""
        try:
            _, number = of_shape(os.path.dirname(os.readlink(self.paths(run_id).orders)))
        except OSError:
            return None
        return None if number < 0 else number

    def further_jobs(self, run_id: str) -> SuccessorJobs:
        return further_jobs(self.paths(run_id))

    def _recorded(self, run_id: str) -> RunRecord:
        paths = self.paths(run_id)
        if not os.path.lexists(paths.run_dir):
            seen = f"there is no run {run_id} in {self.runs}"
            raise NoSuchRun(seen, "clusterrun status shows the runs there are")
        private_files.trust(paths.run_dir, links=False)
        record = read_document(RunRecord, paths.record)
        if record is None:
            raise BadDocument(f"{paths.record} is missing: the submission did not get that far")
        if record.run_id != run_id:
            raise BadDocument(f"{paths.record} is the record of another run, {record.run_id}")
        return record

    def state(self, run_id: str) -> RunState | None:
        """What the coordinator last said; None before its first word. Raises ``BadDocument``."""
        return read_document(RunState, self.paths(run_id).state)

    def ended(self, run_id: str) -> EndedRun | None:
        """How the run ended, if the client recorded it. Raises ``BadDocument``."""
        return read_document(EndedRun, self.paths(run_id).ended)

    def report(self, run_id: str, attempt: int) -> Report | None:
        """What the pre-flight check of an attempt found, if it had a verdict. Raises ``BadDocument``."""
        return read_document(Report, self.paths(run_id).attempt(attempt).preflight, MOST_REPORT_BYTES)

    def checked_for(self, run_id: str) -> CheckedFor | None:
        """What the check of a run in an allocation depends on. Raises ``BadDocument``."""
        return read_document(CheckedFor, self.paths(run_id).checked_for)

    def settle(self, status: RunStatus, now: float, job_id: str) -> None:
        """Record the end of a run whose newest started job is ``job_id``.

        It is not synced: an end that a crash damages is determined again. Raises ``DiskRefused``.
        """
        text = _text(encode_set(EndedRun(now, status, job_id)))
        private_files.write_whole(self.paths(status.run_id).ended, text, sync=False)
        self._forget_live(status.run_id)

    def reopen(self, run_id: str) -> None:
        """Remove the record of a run's end: it is still live. Raises ``DiskRefused``."""
        private_files.empty_file(os.path.join(self.live, run_id))
        private_files.removed(self.paths(run_id).ended)

    def left_behind(self, run_id: str) -> LeftBehind | None:
        """The newest message of agents whose coordinator is gone; None if none can be read."""
        try:
            return read_document(LeftBehind, self.paths(run_id).left)
        except (BadDocument, ClusterrunError):
            return None

    def script_error(self, run_id: str) -> str:
        """What the batch script printed last, where it is the script's own word on why it ended; else ''."""
        told = end_of(self.paths(run_id).job_output, LAST_BYTES)[0].decode("utf-8", "replace")
        last = told.rstrip("\n").rpartition("\n")[2]
        return last.removeprefix(OURS) if last.startswith(OURS) else ""

    def ask_cancel(self, run_id: str, kill_wait: float | None = None) -> None:
        """Leave the request to end the run, with the seconds from SIGTERM to SIGKILL if they are given."""
        text = "" if kill_wait is None else json.dumps({"kill_wait": kill_wait}) + "\n"
        private_files.write_whole(self.paths(run_id).cancel, text)

    def cancel_asked(self, run_id: str) -> bool:
        return os.path.exists(self.paths(run_id).cancel)

    def ids(self) -> list[str]:
        """Every run id, newest first; nothing is opened."""
        return _listed(self.runs)

    def current(self, recent: int) -> list[str]:
        """The ids of all live runs and of the newest ``recent`` ones, newest first."""
        known = self.ids()
        alive = set(_listed(self.live))
        return [one for place, one in enumerate(known) if place < recent or one in alive]

    def find(self, word: str) -> str:
        """Return the run that an id, a unique prefix of one, ``last``, a job id or a name means.

        A name may be written as it was given, or as it stands in run ids: ``pkg/train`` or ``pkg_train``.
        Raises ``NoSuchRun``.
        """
        ids = self.ids()
        if word in ids:
            return word
        if word == LAST and ids:
            return ids[0]
        if run_of_job := self._by_job(word, ids):
            return run_of_job
        if named := next(self._named(word, ids), ""):
            return named
        if named_in_id := next((run_id for run_id in ids if name_of(run_id) == word), ""):
            return named_in_id
        # Digits alone are a job's number. As the start of an id, "2" would mean any lone run.
        is_start = bool(word) and not JOB_ID.fullmatch(word)
        starts = [run_id for run_id in ids if is_start and run_id.startswith(word)]
        if len(starts) == 1:
            return starts[0]
        raise _unknown(word, starts, ids)

    def newest_of_job(self, job_id: str) -> str:
        """The newest run that had the job ``job_id``, or waits for it; '' where none had it."""
        return self._by_job(job_id, self.ids())

    def _by_job(self, word: str, known: list[str]) -> str:
        if not JOB_ID.fullmatch(word):
            return ""
        elsewhere = ""
        for record in self._records(known):
            further = self.further_jobs(record.run_id)
            if word not in (record.job_id, further.job_id, further.waiting, *record.others):
                continue
            if not self._other_cluster(record):
                return record.run_id
            elsewhere = elsewhere or record.run_id
        return elsewhere or next((one for one in known if word in self._earlier_jobs(one)), "")

    def _earlier_jobs(self, run_id: str) -> set[str]:
        """The jobs of a long chain: elsewhere only the first and the last of them stand."""
        if not os.path.exists(self.paths(run_id).successor):
            return set()
        try:
            state = self.state(run_id)
        except (BadDocument, private_files.DiskRefused):
            return set()
        return {attempt.job_id for attempt in state.attempts} if state else set()

    def _named(self, word: str, known: list[str]) -> Iterator[str]:
        wanted = file_name(word)
        same = [one for one in known if name_of(one) == wanted]
        return (record.run_id for record in self._records(same) if record.name == word)

    def live_of_name(self, name: str) -> list[str]:
        """The ids of the runs of this name that were not seen to end, newest first."""
        return list(self._named(name, self.current(0)))

    def _records(self, ids: list[str]) -> Iterator[RunRecord]:
        for one in ids:
            try:
                yield self._recorded(one)
            except (BadDocument, private_files.DiskRefused, NoSuchRun):
                continue


def _unknown(word: str, starts: list[str], known: list[str]) -> NoSuchRun:
    if starts:
        shown = ", ".join(starts[:5]) + (", …" if len(starts) > 5 else "")
        return NoSuchRun(f"{word!r} is the start of {len(starts)} run ids: {shown}", "give more of the id")
    if not known:
        return NoSuchRun(f"there is no run {word!r}: there are no runs yet", "clusterrun submit starts one")
    words = dict.fromkeys([name_of(one) for one in known] + known + [LAST])
    near = nearest(word, words, most=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return NoSuchRun(f"there is no run {word!r}", hint + "clusterrun status shows the runs there are")


def _listed(folder: str) -> list[str]:
    return sorted((name for name in private_files.names_in(folder) if RUN_ID.fullmatch(name)), reverse=True)


def _text(document: object) -> str:
    return json.dumps(document, indent=1) + "\n"
