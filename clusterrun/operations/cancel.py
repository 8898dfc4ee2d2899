"""End runs: ask the coordinator, then the scheduler, then wait until no job and no process is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.local import processes
from clusterrun.model.contract import KILL_WAIT_SECONDS
from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.spec import Cluster, OnUnfit
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.job_matching import Jobs
from clusterrun.runs.private_files import DiskRefused
from clusterrun.slurm.queries import JobRow

# Seconds to wait for the end of cancelled runs. It is longer if the ranks have more time than this to end.
LIMIT = 60.0
# Seconds after the KILL for the record of the end and Slurm's epilogs.
END_SECONDS = 30.0
# Seconds for a coordinator to read the request and to end its job, in addition to the time of the ranks.
OWN_END_SECONDS = 10.0
SPEAK_AFTER = 2.0


def cancel(
    context: Context, ids: Sequence[str], tell: Tell, kill_wait: float | None = None
) -> list[tuple[RunStatus, RunStatus]]:
    """End the runs ``ids``. Return the status of each before, and after its end or ``LIMIT`` seconds.

    ``kill_wait`` is the time from SIGTERM to SIGKILL in seconds. It replaces Slurm's KillWait and the value
    of the submission. Slurm is asked to end a running job only after that time.
    A run that has ended already keeps its end. A job of it that still waits is cancelled.
    Raise ``SchedulerError`` if a job may live on because Slurm did not answer. A second call is safe.
    """
    began = context.clock.now()
    before = context.inquiry(tell).statuses(ids)
    alive = [status.run_id for status in before if not status.state.ended]
    for run_id in alive:
        try:
            context.store.ask_cancel(run_id, kill_wait)
        except DiskRefused as error:  # the scheduler or a signal still ends the run
            tell(f"the request to end the run could not be written for its coordinator: {error.seen}")
    records = [context.store.read(status.run_id) for status in before]
    times = {record.run_id: _kill_wait(record, context, kill_wait) for record in records}
    limit = max([LIMIT, *(seconds + END_SECONDS for seconds in times.values())])
    still_queueing = [record for record in records if record.run_id in alive or _may_queue_jobs(record)]
    queue = Queue(context, still_queueing, began)
    if kill_wait is not None:
        queue.spare_running_until = began + kill_wait + OWN_END_SECONDS
    silence = queue.end()
    for record in records:
        is_local = record.cluster == Cluster.LOCAL.value or record.in_allocation
        if record.run_id in alive and is_local and record.coordinator:
            slow = partial(_say_waiting, record.run_id, limit, tell)
            processes.end(
                record.coordinator, context.clock, times[record.run_id] + processes.AFTER_RANKS_SECONDS, slow
            )
    _wait_for_the_end(context, alive, tell, limit, None if silence else queue)
    after = context.inquiry().statuses(ids, ask=silence is None, oldest=limit)
    silence = silence or queue.silence
    if silence and (queue.may_hold or not all(status.state.ended for status in after)):
        states = ", ".join(f"{status.run_id} is {status.state.value}" for status in after)
        message = f"{silence.seen}\n{states}; a job may still be in Slurm's queue"
        cancel_again = f"clusterrun cancel {' '.join(status.run_id for status in after)}"
        raise type(silence)(message, f"{REQUESTED}\nonce Slurm answers, type again: {cancel_again}")
    if unreachable := queue.unreachable([status.run_id for status in after if not status.state.ended]):
        messages = [
            f"{run_id} is not ended: its jobs are on the cluster {name}" for run_id, name in unreachable
        ]
        too = f"clusterrun cancel {' '.join(run_id for run_id, _ in unreachable)}"
        remedy = f"to take its jobs from the queue too, on a login node of that cluster: {too}"
        raise SchedulerError("\n".join(messages), f"{REQUESTED}\n{remedy}")
    return list(zip(before, after))


def _kill_wait(record: RunRecord, context: Context, override: float | None) -> float:
    """Return the longest time in seconds that the ranks of a run have from SIGTERM to SIGKILL."""
    if override is not None:
        return override
    by_slurm = record.cluster == Cluster.SLURM.value
    return context.client().kill_wait() if by_slurm else float(record.spec.kill_wait or KILL_WAIT_SECONDS)


REQUESTED = "the run directory holds the request: a coordinator that runs, or starts later, ends its run"


def _may_queue_jobs(record: RunRecord) -> bool:
    """Return whether jobs may be queued for the run while it lives."""
    return bool(record.spec.goes_on) or record.spec.on_unfit is OnUnfit.RESUBMIT


class Queue:
    """The jobs of some runs in Slurm's queue, including jobs that a coordinator queues later."""

    def __init__(self, context: Context, records: Sequence[RunRecord], began: float) -> None:
        """``began`` is the time of the request. A query that failed before it may be tried again."""
        self._context, self._began = context, began
        queued = (record for record in records if record.cluster == Cluster.SLURM.value)
        self._records = [record for record in queued if not record.in_allocation]
        self._ended: set[str] = set()
        # Until this time (wall clock) the coordinator of a running job ends it, since it gives the ranks more
        # time.
        self.spare_running_until = 0.0
        self.silence: SchedulerError | None = None

    @property
    def may_hold(self) -> bool:
        """Return whether Slurm may hold a job of the runs that no file names yet."""
        return any(map(_may_queue_jobs, self._records))

    def end(self) -> SchedulerError | None:
        """End every queued job of the runs. Return the error if Slurm could not be asked."""
        try:
            jobs = self._rows(self._began if self.may_hold else 0.0)
            if any(not self._of(record, jobs) for record in self._records):
                jobs = self._rows(self._began)  # a job may have been queued since that answer
            self._end(jobs)
        except SchedulerError as error:
            self.silence = error
        return self.silence

    def end_more(self) -> bool:
        """End jobs that were queued before their coordinator read the request.

        Return whether there were any.
        """
        if not self.may_hold:
            return False
        try:
            return self._end(self._rows(self._context.clock.now()))
        except SchedulerError as error:
            self.silence = error
            return False

    def _rows(self, since: float) -> Jobs:
        """Return the jobs in the queue, not older than ``since``. Raise ``SchedulerError``."""
        news = self._context.jobs().jobs(since=since)
        if not news.failure:
            return self._context.matching(news.rows)
        if news.failed_at >= self._began:
            raise SchedulerUnreachable(news.failure, news.remedy)
        return self._context.matching(self._context.client().jobs())

    def _of(self, record: RunRecord, jobs: Jobs) -> list[JobRow]:
        return jobs.of(record, self._context.store.further_jobs(record.run_id).waiting)

    def unreachable(self, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return the runs of ``run_ids`` whose jobs belong to another cluster, each with its name."""
        unreachable = []
        for record in self._records:
            cluster = self._context.other_cluster(record)
            if cluster and record.run_id in run_ids:
                unreachable.append((record.run_id, cluster))
        return unreachable

    def _end(self, jobs: Jobs) -> bool:
        """Cancel the live jobs of the runs. Return whether there were any."""
        rows = [row for record in self._records for row in self._of(record, jobs)]
        # A job that was ended may be in the queue again if it was requeued at the same moment.
        rows = [row for row in rows if row.state is State.PENDING or row.job_id not in self._ended]
        if self._context.clock.now() < self.spare_running_until:
            rows = [row for row in rows if row.state is State.PENDING]
        job_ids = [row.job_id for row in rows if not row.state.ended]
        self._context.client().cancel(job_ids)
        self._ended.update(job_ids)
        return bool(job_ids)


def _say_waiting(names: str, limit: float, tell: Tell) -> None:
    tell(f"waiting for {names} to end, at most {limit:.0f} s")


def _wait_for_the_end(
    context: Context, ids: Sequence[str], tell: Tell, limit: float, queue: Queue | None
) -> None:
    """Wait for the end of the runs, and end the jobs that enter the ``queue`` during the wait."""
    began, pause, is_reported = context.clock.monotonic(), 0.2, False
    asked_at = context.clock.now()  # an older answer of Slurm does not count
    while True:
        statuses = context.inquiry().statuses(ids, queue is not None, since=asked_at)
        live = [status for status in statuses if not status.state.ended]
        waits = not live or any(status.state is State.PENDING for status in live)
        has_ended_more = queue is not None and waits and queue.end_more()
        if not live and not has_ended_more:
            return
        waited = context.clock.monotonic() - began
        if live and queue is not None and 0 < queue.spare_running_until <= context.clock.now():
            queue.spare_running_until = 0.0
            queue.end()
        unreachable = queue is None or len(queue.unreachable([status.run_id for status in live])) == len(live)
        hopeless = unreachable and all(status.state is State.UNKNOWN for status in live)
        if waited > limit or hopeless:
            return
        if waited > SPEAK_AFTER and not is_reported:
            _say_waiting(", ".join(status.run_id for status in live), limit, tell)
            is_reported = True
        context.clock.sleep(pause)
        pause = min(pause * 1.5, 5.0)
