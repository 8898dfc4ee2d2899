"""The scheduler as the coordinator meets it: questions about this job, jobs that go on; decides nothing.

Every program of it runs in a child and within a limit: the scheduler may be away at any moment.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterrun.coordinator import actions, events, slurm_job
from clusterrun.coordinator.io.report_files import ReportFiles
from clusterrun.coordinator.io.requeue_commands import RequeueCommands
from clusterrun.model.orders import Orders
from clusterrun.runtime.processes import ProcessEnd
from clusterrun.slurm_text.controller_away import MOST_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from clusterrun.runtime.commands import CommandDone, CommandRunner

LAST_SECONDS = 12.0
"""For what is under way when the run is over: a job that is taken back, or kept off bad nodes."""


class Scheduler:
    """``commands`` runs what is asked of Slurm about ``job``; ``happened`` takes events."""

    def __init__(
        self,
        commands: CommandRunner,
        job: slurm_job.SlurmJob,
        orders: Orders,
        filing: ReportFiles,
        note: Callable[[str], None],
        happened: Callable[[Any], None],
    ) -> None:
        self._commands, self._job = commands, job
        self._argv = orders.survival.resubmit
        self._filing, self._note, self._happened = filing, note, happened
        self._succession = RequeueCommands(commands, filing, job.job_id, orders.run_id, note)
        self.reaped: Callable[[ProcessEnd], None] = commands.reaped

    def carry_out(self, order: Any) -> None:
        """One of the actions that concern the scheduler; its answer comes as an event."""
        _CARRY_OUT[type(order)](self, order)

    def drop_shapes(self, shape: int) -> None:
        """The run has begun in this shape: nobody begins it in another one."""
        self._succession.drop_shapes(shape)

    def _ask(self, order: actions.AskJob) -> None:
        def done(said: CommandDone) -> None:
            if said.why:
                self._note(f"the scheduler does not say how this job stands: {said.why}")
            self._happened(slurm_job.answer(self._job, () if said.why else said.lines))

        limit = slurm_job.LIMIT_SECONDS
        self._commands.run(slurm_job.question(self._job), limit, done, slurm_job.ENVIRONMENT)

    def _resubmit(self, order: actions.Resubmit) -> None:
        def told(job_id: str, why: str) -> None:
            if job_id:
                self._filing.successor(job_id, order.excluded)
            self._happened(events.Resubmitted(job_id, why))

        self._succession.resubmit(order.argv, told)

    def _queue_next(self, order: actions.QueueNext) -> None:
        def told(job_id: str, why: str) -> None:
            words = f"job {job_id} waits to go on after this one" if job_id else f"no job was queued: {why}"
            self._note(words)
            self._happened(events.NextQueued(job_id, why))

        self._succession.queue(order.argv, order.excluded, told)

    def _requeue(self, order: actions.Requeue) -> None:
        def told(why: str) -> None:
            if not why:
                self._happened(events.HandedOver())
                return

            def looked(said: CommandDone) -> None:
                done = slurm_job.answer(self._job, said.lines).requeued
                self._happened(events.HandedOver("" if done else why))

            # An answer may be lost on its way.
            limit = slurm_job.LIMIT_SECONDS
            self._commands.run(slurm_job.question(self._job), limit, looked, slurm_job.ENVIRONMENT)

        self._succession.requeue(self._argv, order.excluded, told)

    def finish(self) -> None:
        """Wait, within a limit, for what is under way."""
        self._commands.finish(MOST_SECONDS if self._succession.takes_back else LAST_SECONDS)


_CARRY_OUT: dict[type, Callable[[Scheduler, Any], None]] = {
    actions.AskJob: Scheduler._ask,
    actions.Resubmit: Scheduler._resubmit,
    actions.QueueNext: Scheduler._queue_next,
    actions.ExcludeNext: lambda self, order: self._succession.exclude(self._argv, order.nodes),
    actions.DropNext: lambda self, order: self._succession.drop(),
    actions.Requeue: Scheduler._requeue,
}
