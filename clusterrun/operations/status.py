"""Query each source for all runs at once, and derive their statuses with ``run_state``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache

from clusterrun.local.processes import alive
from clusterrun.model.document import BadDocument
from clusterrun.model.duration import spoken
from clusterrun.model.errors import ClusterrunError, NoSuchRun, SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.phrases import some_of
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.operations.job_matching import Jobs, MatchedJob
from clusterrun.operations.lost_nodes import removed_nodes
from clusterrun.operations.run_files import RunFiles, read, recorded
from clusterrun.operations.run_state import (
    NEVER,
    QUEUEING_SECONDS,
    STALE_SECONDS,
    RunEvidence,
    judge,
    recorded_end,
)
from clusterrun.runs.private_files import DiskRefused
from clusterrun.runs.store import Store
from clusterrun.slurm.client import ANSWER_SECONDS, SlurmClient
from clusterrun.slurm.job_cache import SharedJobs
from clusterrun.slurm.queries import JobRow
from clusterrun.slurm_text.reasons import SEE_NODES
from clusterrun.system import Clock, notice_if_slow

SPEAK_AFTER = 2.0


@frozen
class SchedulerReply:
    """The scheduler's answer about some runs."""

    rows: Mapping[str, MatchedJob] = {}  # job by run id
    at: float | None = None  # time of the answer
    answered: bool = True  # whether the scheduler answered now
    doubtful: tuple[str, ...] = ()  # runs whose end is not recorded yet, since the accounting may know more
    elsewhere: Mapping[str, str] = {}  # by run id, the other cluster that holds its jobs


class StatusQuery:
    """A query for the statuses of runs. ``notices`` holds the messages for the user about its sources."""

    def __init__(
        self,
        store: Store,
        client: Callable[[], SlurmClient],
        jobs: Callable[[], SharedJobs],
        clock: Clock,
        tell: Callable[[str], None],
        other_cluster: Callable[[RunRecord], str],
    ) -> None:
        """``tell`` gets a notice about a long wait. ``other_cluster`` is ``Context.other_cluster``."""
        self._store, self._client, self._jobs = store, client, jobs
        self._clock, self._tell, self._other_cluster = clock, tell, other_cluster
        self.notices: list[str] = []
        self._node_reasons = lru_cache(lambda nodes, partition: client().node_reasons(nodes, partition))

    def statuses(
        self,
        ids: Iterable[str],
        ask: bool = True,
        oldest: float = 0.0,
        since: float = 0.0,
        skip_missing: bool = False,
    ) -> list[RunStatus]:
        """Return the status of each run, in order. A damaged run is UNKNOWN with a reason.

        Only the run directories are read if ``ask`` is false. An answer of Slurm may be ``oldest`` seconds
        old, but not from before ``since``. A run that does not exist is skipped if ``skip_missing`` is true.
        Otherwise it raises ``NoSuchRun``.
        """
        self._node_reasons.cache_clear()
        cases: list[RunFiles | RunStatus] = []
        for run_id in ids:
            try:
                cases.append(read(self._store, run_id))
            except NoSuchRun:
                if not skip_missing:
                    raise
        readable = [files for files in cases if isinstance(files, RunFiles)]
        heard = self._scheduler_reply(readable, oldest, since) if ask else SchedulerReply(answered=False)
        return [self._status(files, heard) if isinstance(files, RunFiles) else files for files in cases]

    def _scheduler_reply(self, cases: list[RunFiles], oldest: float, since: float) -> SchedulerReply:
        """Return the scheduler's answer about the runs that it may know more about."""
        candidates = [
            files
            for files in cases
            if files.record.cluster == Cluster.SLURM.value and files.open(self._clock.now())
        ]
        if not candidates:
            return SchedulerReply()
        sentence = f"waiting for Slurm to answer, at most {ANSWER_SECONDS:.0f} s a question"
        with notice_if_slow(SPEAK_AFTER, self._tell, sentence):
            began = self._clock.now()
            news = self._jobs().jobs(oldest, since)
            queue = self._matching(news.rows)
            rows = _speaking(candidates, queue)
            unknown = [
                files.record for files in candidates if files.record.run_id not in rows and not news.failure
            ]
            cluster_by_run = {
                record.run_id: name for record in unknown if (name := self._other_cluster(record))
            }
            own_files = [files for files in candidates if files.record.run_id not in cluster_by_run]
            if not news.failure and any(
                self._outdated(files, news.at, rows.get(files.record.run_id)) for files in own_files
            ):
                news = self._jobs().jobs(oldest, since=began)  # a job may have been queued since that answer
                queue = self._matching(news.rows)
                rows = _speaking(candidates, queue)
            if news.failure:
                message = f"{news.failure}: the answer comes from the run directories"
                ago = spoken(self._clock.now() - news.at)
                self.notices.append(f"{message} and from Slurm's answer {ago} ago" if news.at else message)
                return SchedulerReply(rows, news.at or None, False)
            doubtful = self._account(own_files, rows, queue)
            return SchedulerReply(rows, news.at, True, doubtful, cluster_by_run)

    def _matching(self, rows: Iterable[JobRow]) -> Jobs:
        return Jobs(rows, self._other_cluster, self._store.newest_of_job)

    def _outdated(self, files: RunFiles, answered_at: float, job: MatchedJob | None) -> bool:
        """Return whether an answer is too old: it lacks the run's job, or is from before the run's end."""
        if files.state and files.state.state.ended:
            return files.state.state is not State.COMPLETED and answered_at < files.state.updated_at
        if files.damage or (job and files.record.job_id in ("", job.own)):
            return False
        return bool(files.record.job_id) or self._clock.now() - files.record.submitted_at > QUEUEING_SECONDS

    def _account(self, cases: list[RunFiles], rows: dict[str, MatchedJob], queue: Jobs) -> tuple[str, ...]:
        """Add the jobs that only the accounting knows to ``rows``.

        Return the runs that it gave no answer about.
        """
        missing: list[RunFiles] = []
        job_ids: dict[str, None] = {}
        for case in cases:
            has_ended = case.state is not None and case.state.state.ended
            was_asked_before = case.ended is not None and case.ended.inferred
            if has_ended or was_asked_before or case.record.run_id in rows or not case.record.job_id:
                continue
            missing.append(case)
            for job_id in (case.record.job_id, case.waiting):
                if job_id and job_id not in queue:
                    job_ids[job_id] = None
        if not job_ids:
            return ()
        try:
            jobs = self._matching(self._client().finished(tuple(job_ids)))
        except SchedulerError as error:
            self.notices.append(f"Slurm's accounting did not report how forgotten jobs ended: {error.seen}")
            return tuple(files.record.run_id for files in missing)
        rows.update(_speaking(missing, jobs))
        return ()

    def _status(self, files: RunFiles, reply: SchedulerReply) -> RunStatus:
        """Return the status of a run, and record or remove its end in the run directory."""
        job = reply.rows.get(files.record.run_id)
        record, now = job.record if job else files.record, self._clock.now()
        row = job.row if job else None
        files = self._latest(files, row if reply.answered else None)
        if job and not files.record.job_id:  # its submission succeeded, though its answer was lost
            files = replace(files, record=replace(files.record, job_id=job.own))
            self._store.save(files.record)
        local = record.cluster == Cluster.LOCAL.value
        run_dir = self._store.paths(record.run_id).run_dir
        if files.damage and (row is None or not reply.answered):
            return recorded(files.record, run_dir, None, files.damage)  # no other source knows the run
        is_alive = None
        is_this_machine = record.host == os.uname().nodename
        has_process = record.process if record.in_allocation else local
        if is_this_machine and has_process:
            is_alive = bool(record.coordinator) and alive(record.coordinator)
        silent = files.state is None or now - files.state.updated_at > STALE_SECONDS
        removed = fold(removed_nodes(files.state, row)) if row and row.state.ended and reply.answered else ""
        status = judge(
            RunEvidence(
                record=record,
                run_dir=run_dir,
                now=now,
                state=files.state,
                row=row,
                answered=reply.answered,
                asked_at=reply.at,
                alive=is_alive,
                cancel_asked=self._store.cancel_asked(record.run_id),
                elsewhere=reply.elsewhere.get(record.run_id, ""),
                script_error="" if files.state else self._store.script_error(record.run_id),
                before=self._before(record) if row and row.reason == NEVER else "",
                waits_for=self._waits_for(record) if row and row.reason == "Dependency" else "",
                node_reason=self._node_reasons(removed, "") if removed else "",
                damaged=bool(files.damage),
                message=self._store.orphan_report(record.run_id) if row and silent else None,
            )
        )
        if row and reply.answered and SEE_NODES in status.reason:
            unavailable = row.reason.partition("UnavailableNodes:")[2]
            nodes = unavailable or row.nodelist or record.spec.nodelist
            if unfit := self._node_reasons(nodes, record.spec.partition):
                status = replace(status, reason=status.reason.replace(SEE_NODES, f"sinfo -R: {unfit}"))
        if files.damage or files.doubt:
            reasons = filter(None, (status.reason, files.damage, files.doubt))
            status = replace(status, reason="; ".join(reasons))
        if files.damage:
            return status
        # A recorded end stands if the scheduler does not answer.
        stands = not reply.answered or not files.open(now) or files.still_inferred(status)
        if files.ended and (stands or files.has_settled(row, reply.at or 0.0)):
            return recorded_end(files.ended.status, files.state, files.ended.at, status)
        self._note(status, files, row is None or row.state.ended or record.in_allocation, reply, now)
        return status

    def _before(self, record: RunRecord) -> str:
        """Return which run before ``record`` did not complete, and how it ended; '' if there is none."""
        for status in self.statuses(self._runs_before(record), oldest=ANSWER_SECONDS, skip_missing=True):
            if status.state.ended and status.state is not State.COMPLETED:
                end = f"{status.name} ({status.run_id}) was {status.state.value}"
                if status.state in (State.TIMEOUT, State.PREEMPTED):
                    end += f" (--sbatch dependency=afterany:{status.job_id} starts after any end)"
                return end
        return ""

    def _waits_for(self, record: RunRecord) -> str:
        """Return the runs of ``--after`` that have no recorded end; '' if there is none."""
        waiting = []
        for run_id in self._runs_before(record):
            with suppress(ClusterrunError, BadDocument):
                if self._store.ended(run_id) is None:
                    waiting.append(f"{self._store.read(run_id).name} ({run_id})")
        return some_of(waiting)

    def _runs_before(self, record: RunRecord) -> Iterator[str]:
        """Yield the runs of ``--after``. One that was removed is left out."""
        for job_id in record.spec.after:
            with suppress(ClusterrunError):
                yield self._store.find(job_id)

    def _note(
        self, status: RunStatus, files: RunFiles, final: bool, reply: SchedulerReply, now: float
    ) -> None:
        """Record an end, unless the scheduler may soon know a better reason.

        Remove the record of a wrong end.
        """
        is_certain = reply.answered and status.run_id not in (*reply.doubtful, *reply.elsewhere)
        try:
            if status.state.ended and final and (is_certain or status.cluster == Cluster.LOCAL.value):
                self._store.settle(status, now, files.record.job_id)
            elif files.ended and status.state in (State.PENDING, State.RUNNING):
                self._store.reopen(status.run_id)
        except DiskRefused as error:  # the status is right even if the disk is full
            self.notices.append(f"the state of {status.run_id} could not be written: {error.seen}")

    def _latest(self, files: RunFiles, row: JobRow | None) -> RunFiles:
        """Read a run again that seems ended or silent, since it may have written during the query."""
        if files.damage or (files.state and files.state.state.ended) or (row and not row.state.ended):
            return files
        with suppress(NoSuchRun):
            newer = read(self._store, files.record.run_id)
            return newer if isinstance(newer, RunFiles) else files
        return files


def _speaking(cases: Iterable[RunFiles], jobs: Jobs) -> dict[str, MatchedJob]:
    """Return by run id the job that shows how the run is."""
    return {files.record.run_id: job for files in cases if (job := jobs.speaking(files))}
