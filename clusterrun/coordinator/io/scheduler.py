"""Query the scheduler about this job, queue the jobs that continue its run, requeue it; decides nothing.

Each of the scheduler's programs runs in a child with a time limit, since the scheduler may be unreachable at
any moment. The scheduler may also accept a job and lose its answer. The queue is therefore read before a job
is queued, and again after a refusal. A job of this run that waits for this job is the next job.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterrun.coordinator import actions, events, slurm_job
from clusterrun.coordinator.io.run_directory import ReportFiles
from clusterrun.model.frozen import Any
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Orders
from clusterrun.model.phrases import code_in_words
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.machine_events import Event
from clusterrun.slurm_text.controller_away import MOST_SECONDS, ControllerAway
from clusterrun.slurm_text.exclude_list import excluding, filled

# A scheduler under load is slow. Callers wait a little longer than this for the answer.
_PATIENCE_SECONDS = 100.0
_LOOK_SECONDS = 10.0
_GIVE_BACK_SECONDS = 30.0
# Commands that run at the end of the run get this long: they cancel a job, or exclude nodes from it.
_LAST_SECONDS = 12.0


class Scheduler:
    """Runs Slurm's commands for ``job`` and passes the results to ``happened``.

    ``note`` is called with errors, which end nothing.
    """

    def __init__(
        self,
        commands: CommandRunner,
        job: slurm_job.SlurmJob,
        orders: Orders,
        reports: ReportFiles,
        note: Callable[[str], None],
        happened: Callable[[Event], None],
    ) -> None:
        self._commands, self._job = commands, job
        self._argv, self._run_id = orders.survival.resubmit, orders.run_id
        self._reports, self._note, self._happened = reports, note, happened
        self._next = ""
        self._takes_back = False

    def carry_out(self, action: Any) -> None:
        _CARRY_OUT[type(action)](self, action)

    def finish(self) -> None:
        self._commands.finish(MOST_SECONDS if self._takes_back else _LAST_SECONDS)

    def _ask(self, action: actions.AskJob) -> None:
        def on_answer(answer: CommandDone) -> None:
            if answer.why:
                self._note(f"the scheduler does not say how this job stands: {answer.why}")
            self._happened(slurm_job.answer(self._job, () if answer.why else answer.lines))

        self._question(on_answer)

    def _question(self, on_answer: Callable[[CommandDone], None]) -> None:
        argv, limit = slurm_job.question(self._job), slurm_job.LIMIT_SECONDS
        self._commands.run(argv, limit, on_answer, slurm_job.ENVIRONMENT)

    def _resubmit(self, action: actions.Resubmit) -> None:
        def on_answer(answer: CommandDone) -> None:
            job_id, why = _number(answer)
            if job_id:
                self._reports.successor(job_id, action.excluded)
            self._happened(events.Resubmitted(job_id, why))

        self._commands.run(action.argv, _PATIENCE_SECONDS, on_answer)

    def _requeue(self, action: actions.Requeue) -> None:
        def on_answer(answer: CommandDone) -> None:
            if answer.why:  # the answer may have been lost
                self._question(lambda job_answer: looked(job_answer, answer.why))
                return
            nodes = excluding(self._argv, action.excluded)
            if action.excluded and nodes:
                self._update(self._job.job_id, nodes)
            self._happened(events.HandedOver())

        def looked(job_answer: CommandDone, why: str) -> None:
            requeued = slurm_job.answer(self._job, job_answer.lines).requeued
            self._happened(events.HandedOver("" if requeued else why))

        self._commands.run(("scontrol", "requeue", self._job.job_id), _GIVE_BACK_SECONDS, on_answer)

    def _update(self, job_id: str, nodes: str) -> None:
        def on_answer(answer: CommandDone) -> None:
            if answer.why:
                self._note(f"job {job_id} cannot be kept off {nodes}: {answer.why}")

        argv = ("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={nodes}")
        self._commands.run(argv, _LOOK_SECONDS, on_answer)

    def _queue_next(self, action: actions.QueueNext) -> None:
        def on_job(job_id: str, why: str = "") -> None:
            self._next = job_id
            if job_id:
                self._reports.next(job_id, action.excluded)
            self._note(
                f"job {job_id} waits to go on after this one" if job_id else f"no job was queued: {why}"
            )
            self._happened(events.NextQueued(job_id, why))

        def queued(answer: CommandDone) -> None:
            job_id, why = _number(answer)
            if job_id:
                on_job(job_id)
            else:
                self._look(lambda waiting: on_job(waiting, "" if waiting else why))

        def looked(waiting: str) -> None:
            if waiting:
                on_job(waiting)
            else:
                argv = filled(self._argv, action.excluded, self._job.job_id)
                self._commands.run(argv, _PATIENCE_SECONDS, queued)

        self._look(looked)

    def _look(self, on_job: Callable[[str], None]) -> None:
        """Call ``on_job`` with the job of this run that waits for this job; '' if there is none."""
        argv = ("squeue", "-h", "--me", "-t", "PENDING", "-o", "%i|%E|%k")

        def on_answer(answer: CommandDone) -> None:
            waiting = [line.split("|", 2) for line in answer.lines if line.count("|") >= 2]
            ours = [
                job_id
                for job_id, dependency, comment in waiting
                if f"afterany:{self._job.job_id}" in dependency.replace("(", ",").split(",")
                and self._run_id in comment
            ]
            on_job(ours[0] if ours and not answer.why else "")

        self._commands.run(argv, _LOOK_SECONDS, on_answer)

    def _exclude_next(self, action: actions.ExcludeNext) -> None:
        nodes = excluding(self._argv, action.nodes)
        if nodes:
            self._update(self._next, nodes)
        else:
            self._note(f"{fold(action.nodes)} cannot be added to what job {self._next} excludes")

    def _drop_next(self, action: actions.DropNext) -> None:
        """Cancel the waiting job. Wait for an unreachable controller: it cannot end this job either."""
        job_id, self._next = self._next, ""
        self._takes_back = True

        def on_answer(answer: CommandDone) -> None:
            self._takes_back = False
            if answer.why:
                self._note(f"job {job_id} could not be taken back ({answer.why}); it will end at once")
            else:
                self._reports.no_next()

        def take_back() -> None:
            self._commands.run(("scancel", job_id), _LOOK_SECONDS, unless_away)

        unless_away = self._unless_away(take_back, on_answer)
        take_back()

    def _unless_away(
        self, again: Callable[[], None], on_answer: Callable[[CommandDone], None]
    ) -> Callable[[CommandDone], None]:
        """Return a callback: it calls ``again`` later if the controller is away, else ``on_answer``."""
        away_message = ControllerAway()

        def retry_or_pass_on(answer: CommandDone) -> None:
            at = away_message.next_at(steady(), (answer.why,)) if answer.why else None
            if at is None:
                on_answer(answer)
            else:
                self._commands.later(at - steady(), again)

        return retry_or_pass_on


def _number(answer: CommandDone) -> tuple[str, str]:
    # Output of sbatch --parsable: the number, and the cluster after a semicolon.
    numbers = [line.partition(";")[0] for line in answer.lines if line.partition(";")[0].isdecimal()]
    if not answer.why and numbers:
        return numbers[-1], ""
    output = " / ".join(line for line in answer.lines if line)
    return "", answer.why or f"the program {code_in_words(answer.code)}: {output}"


_CARRY_OUT: dict[type, Callable[[Scheduler, Any], None]] = {
    actions.AskJob: Scheduler._ask,
    actions.Resubmit: Scheduler._resubmit,
    actions.QueueNext: Scheduler._queue_next,
    actions.ExcludeNext: Scheduler._exclude_next,
    actions.DropNext: Scheduler._drop_next,
    actions.Requeue: Scheduler._requeue,
}
