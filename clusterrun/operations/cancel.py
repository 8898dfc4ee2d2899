"""Ends runs: asks the coordinator, then the scheduler, then waits until no job and no process is left."""

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

LIMIT = 60.0
"""Seconds to see the end of what was cancelled, or ``END_SECONDS`` more than ranks have if that is longer."""
END_SECONDS = 30.0
"""For the record of the end and Slurm's epilogs, after the KILL."""
OWN_END_SECONDS = 10.0
"""For a coordinator to hear of the request and to end its job by itself, beside the time that ranks have."""
SPEAK_AFTER = 2.0


def cancel(
    context: Context, ids: Sequence[str], tell: Tell, kill_wait: float | None = None
) -> list[tuple[RunStatus, RunStatus]]:
    """End the runs ``ids``; the status of each before, and after its end or ``LIMIT`` seconds.

    ``kill_wait``: seconds from SIGTERM to SIGKILL, in the place of Slurm's KillWait or what the run was
    submitted with. Slurm is asked to end a running job only after that time.
    A run that has ended already is left as it is, but for a job of it that still waits. Raises
    ``SchedulerError`` where a job may live on because Slurm could not be told: to say it again is safe.
    """
    began = context.clock.now()
    before = context.inquiry(tell).statuses(ids)
    alive = [status.run_id for status in before if not status.state.ended]
    for run_id in alive:
        try:
            context.store.ask_cancel(run_id, kill_wait)
        except DiskRefused as error:  # the scheduler or a signal still ends the run
            tell(f"the coordinator could not be told to end the run: {error.seen}")
    records = [context.store.read(status.run_id) for status in before]
    times = {record.run_id: _kill_wait(record, context, kill_wait) for record in records}
    limit = max([LIMIT, *(seconds + END_SECONDS for seconds in times.values())])
    queue = Queue(context, [one for one in records if one.run_id in alive or _goes_on(one)], began)
    if kill_wait is not None:
        queue.spare_running_until = began + kill_wait + OWN_END_SECONDS
    silence = queue.end()
    for record in records:
        here = record.cluster == Cluster.LOCAL.value or record.in_allocation
        if record.run_id in alive and here and record.coordinator:
            slow = partial(_say_waiting, record.run_id, limit, tell)
            processes.end(
                record.coordinator, context.clock, times[record.run_id] + processes.AFTER_RANKS_SECONDS, slow
            )
    _wait_for_the_end(context, alive, tell, limit, None if silence else queue)
    after = context.inquiry().statuses(ids, ask=silence is None, oldest=limit)
    silence = silence or queue.silence
    if silence and (queue.may_hold or not all(status.state.ended for status in after)):
        raise _unsure(silence, after)
    if away := queue.unreachable([status.run_id for status in after if not status.state.ended]):
        raise _on_another_cluster(away)
    return list(zip(before, after))


def _kill_wait(record: RunRecord, context: Context, wanted: float | None) -> float:
    """The most seconds that the ranks of a run have from SIGTERM to SIGKILL."""
    if wanted is not None:
        return wanted
    by_slurm = record.cluster == Cluster.SLURM.value
    return context.client().kill_wait() if by_slurm else float(record.spec.kill_wait or KILL_WAIT_SECONDS)


REQUESTED = "the run directory holds the request: a coordinator that runs, or starts later, ends its run"


def _unsure(silence: SchedulerError, after: Sequence[RunStatus]) -> SchedulerError:
    states = ", ".join(f"{status.run_id} is {status.state.value}" for status in after)
    seen = f"{silence.seen}\n{states}; a job in Slurm's queue may still be there"
    again = f"clusterrun cancel {' '.join(status.run_id for status in after)}"
    return type(silence)(seen, f"{REQUESTED}\nonce Slurm answers, type again: {again}")


def _on_another_cluster(runs: Sequence[tuple[str, str]]) -> SchedulerError:
    """Runs that live on because this cluster's Slurm cannot end another one's jobs."""
    seen = [f"{run_id} is not ended: its jobs are on the cluster {name}" for run_id, name in runs]
    too = f"clusterrun cancel {' '.join(run_id for run_id, _ in runs)}"
    there = f"to take its jobs from the queue too, on a login node of that cluster: {too}"
    return SchedulerError("\n".join(seen), f"{REQUESTED}\n{there}")


def _goes_on(record: RunRecord) -> bool:
    """Whether jobs may be queued for the run while it lives."""
    return bool(record.spec.goes_on or record.spec.shapes) or record.spec.on_unfit is OnUnfit.RESUBMIT


class Queue:
    """The jobs of some runs in Slurm's queue, whoever queued them, and however late."""

    def __init__(self, context: Context, records: Sequence[RunRecord], began: float) -> None:
        """``began`` is when the end was asked for: what failed before may be tried again."""
        self._context, self._began = context, began
        queued = (one for one in records if one.cluster == Cluster.SLURM.value)
        self._records = [one for one in queued if not one.in_allocation]
        self._ended: set[str] = set()
        # Until then (wall clock) a job that runs is left to its coordinator, which ends it with more time.
        self.spare_running_until = 0.0
        self.silence: SchedulerError | None = None

    @property
    def may_hold(self) -> bool:
        """Whether Slurm may hold a job of the runs that no file here names yet."""
        return any(map(_goes_on, self._records))

    def end(self) -> SchedulerError | None:
        """End every job of the runs that is there now; why that could not be said to Slurm."""
        try:
            known = self._rows(self._began if self.may_hold else 0.0)
            if any(not self._of(one, known) for one in self._records):
                known = self._rows(self._began)  # it may have been queued since that answer
            self._end(known)
        except SchedulerError as error:
            self.silence = error
        return self.silence

    def end_more(self) -> bool:
        """End jobs that were queued meanwhile, before the request was seen; whether there were any."""
        if not self.may_hold:
            return False
        try:
            return self._end(self._rows(self._context.clock.now()))
        except SchedulerError as error:
            self.silence = error
            return False

    def _rows(self, since: float) -> Jobs:
        news = self._context.jobs().jobs(since=since)
        if not news.failure:
            return self._context.matching(news.rows)
        if news.failed_at >= self._began:
            raise SchedulerUnreachable(news.failure, news.remedy)
        return self._context.matching(self._context.client().jobs())

    def _of(self, record: RunRecord, jobs: Jobs) -> list[JobRow]:
        return jobs.of(record, self._context.store.further_jobs(record.run_id).waiting)

    def unreachable(self, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Those of the runs whose jobs are another cluster's, each with its name."""
        names = [(one.run_id, self._context.other_cluster(one)) for one in self._records]
        return [(run_id, name) for run_id, name in names if name and run_id in run_ids]

    def _end(self, known: Jobs) -> bool:
        rows = [row for one in self._records for row in self._of(one, known)]
        # One that was ended may be back in the queue: requeued at the same moment.
        rows = [row for row in rows if row.state is State.PENDING or row.job_id not in self._ended]
        if self._context.clock.now() < self.spare_running_until:
            rows = [row for row in rows if row.state is State.PENDING]
        found = [row.job_id for row in rows if not row.state.ended]
        self._context.client().cancel(found)
        self._ended.update(found)
        return bool(found)


def _say_waiting(names: str, limit: float, tell: Tell) -> None:
    tell(f"waiting for {names} to end, at most {limit:.0f} s")


def _wait_for_the_end(
    context: Context, ids: Sequence[str], tell: Tell, limit: float, queue: Queue | None
) -> None:
    """Wait for the end of the runs, and of the jobs that came into the ``queue`` meanwhile."""
    began, pause, said = context.clock.monotonic(), 0.2, False
    told = context.clock.now()  # what Slurm said before that is no news
    while True:
        statuses = context.inquiry().statuses(ids, queue is not None, since=told)
        left = [status for status in statuses if not status.state.ended]
        waits = not left or any(status.state is State.PENDING for status in left)
        more = queue is not None and waits and queue.end_more()
        if not left and not more:
            return
        waited = context.clock.monotonic() - began
        if left and queue is not None and 0 < queue.spare_running_until <= context.clock.now():
            queue.spare_running_until = 0.0
            queue.end()
        untold = queue is None or len(queue.unreachable([status.run_id for status in left])) == len(left)
        hopeless = untold and all(status.state is State.UNKNOWN for status in left)
        if waited > limit or hopeless:
            return
        if waited > SPEAK_AFTER and not said:
            _say_waiting(", ".join(status.run_id for status in left), limit, tell)
            said = True
        context.clock.sleep(pause)
        pause = min(pause * 1.5, 5.0)
