"""Asks each source about all runs at once, and derives their status with ``run_state``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from clusterrun.local.processes import alive
from clusterrun.model.duration import spoken
from clusterrun.model.errors import ClusterrunError, NoSuchRun, SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.operations.job_matching import Jobs, MatchedJob
from clusterrun.operations.run_files import RunFiles, damaged, read
from clusterrun.operations.run_state import NEVER, QUEUEING_SECONDS, STALE_SECONDS, RunEvidence, judge, kept
from clusterrun.runs.private_files import DiskRefused
from clusterrun.runs.store import Store
from clusterrun.slurm.client import ANSWER_SECONDS, SlurmClient
from clusterrun.slurm.job_cache import SharedJobs
from clusterrun.slurm.queries import JobRow
from clusterrun.system import Clock, notice_if_slow

SPEAK_AFTER = 2.0


@frozen
class SchedulerReply:
    """What the scheduler said of each run by its id, when, and whether it answered.

    Of the runs in ``doubtful`` more may be learnt later: their last word is not kept yet. ``elsewhere``
    names, by run id, the cluster that holds a run's jobs where another was asked.
    """

    rows: Mapping[str, MatchedJob] = {}
    at: float | None = None
    answered: bool = True
    doubtful: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = {}


class StatusQuery:
    """Statuses of runs; ``notices`` holds what the user should know about how they were found."""

    def __init__(
        self,
        store: Store,
        client: Callable[[], SlurmClient],
        jobs: Callable[[], SharedJobs],
        clock: Clock,
        tell: Callable[[str], None],
        other_cluster: Callable[[RunRecord], str],
    ) -> None:
        """``tell`` reports a wait that gets long; ``other_cluster`` is ``Context.other_cluster``."""
        self._store, self._client, self._jobs = store, client, jobs
        self._clock, self._tell, self._other_cluster = clock, tell, other_cluster
        self.notices: list[str] = []

    def statuses(
        self,
        ids: Iterable[str],
        ask: bool = True,
        oldest: float = 0.0,
        since: float = 0.0,
        gone: bool = False,
    ) -> list[RunStatus]:
        """The status of each run, in order; a damaged one is UNKNOWN and says why.

        Without ``ask`` only the run directories speak. An answer of Slurm may be ``oldest`` seconds old, but
        not from before ``since``. With ``gone``, runs that are there no more are left out, else:
        ``NoSuchRun``.
        """
        found: list[RunFiles | RunStatus] = []
        for one in ids:
            try:
                found.append(read(self._store, one))
            except NoSuchRun:
                if not gone:
                    raise
        readable = [c for c in found if isinstance(c, RunFiles)]
        heard = self._scheduler_reply(readable, oldest, since) if ask else SchedulerReply(answered=False)
        return [self._status(c, heard) if isinstance(c, RunFiles) else c for c in found]

    def _scheduler_reply(self, cases: list[RunFiles], oldest: float, since: float) -> SchedulerReply:
        """What the scheduler says of the runs that it could say something of."""
        asked = [c for c in cases if c.record.cluster == Cluster.SLURM.value and c.open(self._clock.now())]
        if not asked:
            return SchedulerReply()
        sentence = f"waiting for Slurm to answer, at most {ANSWER_SECONDS:.0f} s a question"
        with notice_if_slow(SPEAK_AFTER, self._tell, sentence):
            return self._asked(asked, oldest, since)

    def _asked(self, cases: list[RunFiles], oldest: float, since: float) -> SchedulerReply:
        began = self._clock.now()
        news = self._jobs().jobs(oldest, since)
        queue = self._matching(news.rows)
        rows = _speaking(cases, queue)
        unknown = [c.record for c in cases if c.record.run_id not in rows and not news.failure]
        away = {one.run_id: name for one in unknown if (name := self._other_cluster(one))}
        ours = [c for c in cases if c.record.run_id not in away]
        if not news.failure and any(self._outdated(c, news.at, rows.get(c.record.run_id)) for c in ours):
            news = self._jobs().jobs(oldest, since=began)  # it may have been queued since that answer
            queue = self._matching(news.rows)
            rows = _speaking(cases, queue)
        if news.failure:
            known = f"{news.failure}: what follows is what the run directories say"
            ago = spoken(max(0.0, self._clock.now() - news.at))
            self.notices.append(f"{known}, and what Slurm said {ago} ago" if news.at else known)
            return SchedulerReply(rows, news.at or None, False)
        doubtful = self._account(ours, rows, queue)
        return SchedulerReply(rows, news.at, True, doubtful, away)

    def _matching(self, rows: Iterable[JobRow]) -> Jobs:
        return Jobs(rows, self._other_cluster, self._store.newest_of_job)

    def _outdated(self, files: RunFiles, answered_at: float, found: MatchedJob | None) -> bool:
        """An answer must not bury a job that it should know, nor tell of one that has ended since."""
        if files.state and files.state.state.ended:
            return files.state.state is not State.COMPLETED and answered_at < files.state.updated_at
        if files.damage or (found and (files.record.spec.shapes or files.record.job_id in ("", found.own))):
            return False
        return bool(files.record.job_id) or self._clock.now() - files.record.submitted_at > QUEUEING_SECONDS

    def _account(self, cases: list[RunFiles], rows: dict[str, MatchedJob], queue: Jobs) -> tuple[str, ...]:
        """Let the accounting speak of jobs that the queue has forgotten; the runs that it did not tell of."""
        open_ = [c for c in cases if not (c.state and c.state.state.ended)]
        asked_before = {c.record.run_id for c in open_ if c.ended and c.ended.inferred}
        known = rows.keys() | asked_before
        missing = [c for c in open_ if c.record.run_id not in known and c.record.job_id]
        numbers = (job for c in missing for job in (c.record.job_id, c.waiting) if job and job not in queue)
        wanted = dict.fromkeys(numbers)
        if not wanted:
            return ()
        try:
            jobs = self._matching(self._client().finished(tuple(wanted)))
        except SchedulerError as error:
            self.notices.append(f"Slurm's accounting did not tell how forgotten jobs ended: {error.seen}")
            return tuple(c.record.run_id for c in missing)
        rows.update(_speaking(missing, jobs))
        return ()

    def _status(self, files: RunFiles, reply: SchedulerReply) -> RunStatus:
        found = reply.rows.get(files.record.run_id)
        record, now = found.record if found else files.record, self._clock.now()
        row = found.row if found else None
        files = self._latest(files, row if reply.answered else None)
        if found and not files.record.job_id:  # its submission was answered after all
            files = replace(files, record=replace(files.record, job_id=found.own))
            self._store.save(files.record)
        local = record.cluster == Cluster.LOCAL.value
        run_dir = self._store.paths(record.run_id).run_dir
        if files.damage and (row is None or not reply.answered):
            return damaged(files, run_dir)
        silent = files.state is None or now - files.state.updated_at > STALE_SECONDS
        status = judge(
            RunEvidence(
                record=record,
                run_dir=run_dir,
                now=now,
                state=files.state,
                row=row,
                answered=reply.answered,
                asked_at=reply.at,
                alive=_alive(record) if local or record.in_allocation else None,
                cancel_asked=self._store.cancel_asked(record.run_id),
                elsewhere=reply.elsewhere.get(record.run_id, ""),
                script_error="" if files.state else self._store.script_error(record.run_id),
                before=self._before(record) if row and row.reason == NEVER else "",
                shape=files.shape,
                damaged=bool(files.damage),
                left=self._store.left_behind(record.run_id) if row and silent else None,
            )
        )
        if files.damage or files.doubt:
            reasons = filter(None, (status.reason, files.damage, files.doubt))
            status = replace(status, reason="; ".join(reasons))
        if files.damage:
            return status
        # A scheduler that does not answer withdraws no end.
        if files.ended and (not reply.answered or not files.open(now) or files.still_inferred(status)):
            return kept(files.ended.status, files.state, files.ended.at, status)
        self._note(status, files, row is None or row.state.ended or record.in_allocation, reply, now)
        return status

    def _before(self, record: RunRecord) -> str:
        """Which of the runs that ``record`` was to follow did not end well, and how it ended."""
        for job_id in record.spec.after:
            try:
                run_id = self._store.find(job_id)
                status = self.statuses([run_id], oldest=ANSWER_SECONDS)[0]
            except ClusterrunError:
                continue
            if status.state.ended and status.state is not State.COMPLETED:
                return f"{status.name} ({run_id}) was {status.state.value}"
        return ""

    def _note(
        self, status: RunStatus, files: RunFiles, final: bool, reply: SchedulerReply, now: float
    ) -> None:
        """Keep an end, unless the scheduler may soon say better why; take one back that was none."""
        told = reply.answered and status.run_id not in (*reply.doubtful, *reply.elsewhere)
        try:
            if status.state.ended and final and (told or status.cluster == Cluster.LOCAL.value):
                self._store.settle(status, now, files.record.job_id)
            elif files.ended and status.state in (State.PENDING, State.RUNNING):
                self._store.reopen(status.run_id)
        except DiskRefused as error:  # a full disk takes nothing from what was found out
            self.notices.append(f"the state of {status.run_id} could not be written: {error.seen}")

    def _latest(self, files: RunFiles, row: JobRow | None) -> RunFiles:
        """A run that seems to be over, or silent, may have spoken while the scheduler was asked."""
        if files.damage or (files.state and files.state.state.ended) or (row and not row.state.ended):
            return files
        with suppress(NoSuchRun):
            again = read(self._store, files.record.run_id)
            return again if isinstance(again, RunFiles) else files
        return files


def _speaking(cases: Iterable[RunFiles], jobs: Jobs) -> dict[str, MatchedJob]:
    return {c.record.run_id: found for c in cases if (found := jobs.speaking(c))}


def _alive(record: RunRecord) -> bool | None:
    if record.host != os.uname().nodename or (record.in_allocation and not record.process):
        return None
    return bool(record.coordinator) and alive(record.coordinator)
