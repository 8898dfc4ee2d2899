"""Asks the scheduler about this job, queues jobs that go on with its run, gives it back; decides nothing.

Every program of it runs in a child and within a limit: the scheduler may be away at any moment. It may also
take a job and lose its answer. So the queue is asked before a job is queued, and again after an answer that
says no: a job that waits for this one, and is of this run, is the one.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterrun.coordinator import actions, events, slurm_job
from clusterrun.coordinator.io.run_directory import ReportFiles
from clusterrun.model.contract import SHAPE_MARK
from clusterrun.model.frozen import Any
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Orders
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.exit_status import code_in_words
from clusterrun.runtime.machine_events import Event
from clusterrun.slurm_text.controller_away import MOST_SECONDS, ControllerAway
from clusterrun.slurm_text.exclude_list import excluding, filled

_PATIENCE_SECONDS = 100.0
"""A scheduler under load takes its time; whoever waits for the answer waits a little longer still."""
_LOOK_SECONDS = 10.0
_GIVE_BACK_SECONDS = 30.0
_LAST_SECONDS = 12.0
"""For what is under way when the run is over: a job that is taken back, or kept off bad nodes."""


class Scheduler:
    """``commands`` runs what is asked of Slurm about ``job``; ``happened`` takes what came of it.

    ``note`` takes what went wrong and ends nothing.
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

    def carry_out(self, order: Any) -> None:
        _CARRY_OUT[type(order)](self, order)

    def finish(self) -> None:
        self._commands.finish(MOST_SECONDS if self._takes_back else _LAST_SECONDS)

    def _ask(self, order: actions.AskJob) -> None:
        def done(said: CommandDone) -> None:
            if said.why:
                self._note(f"the scheduler does not say how this job stands: {said.why}")
            self._happened(slurm_job.answer(self._job, () if said.why else said.lines))

        self._question(done)

    def _question(self, done: Callable[[CommandDone], None]) -> None:
        argv, limit = slurm_job.question(self._job), slurm_job.LIMIT_SECONDS
        self._commands.run(argv, limit, done, slurm_job.ENVIRONMENT)

    def _resubmit(self, order: actions.Resubmit) -> None:
        def done(answer: CommandDone) -> None:
            job_id, why = _number(answer)
            if job_id:
                self._reports.successor(job_id, order.excluded)
            self._happened(events.Resubmitted(job_id, why))

        self._commands.run(order.argv, _PATIENCE_SECONDS, done)

    def _requeue(self, order: actions.Requeue) -> None:
        def done(answer: CommandDone) -> None:
            if answer.why:  # an answer may be lost on its way
                self._question(lambda said: looked(said, answer.why))
                return
            words = excluding(self._argv, order.excluded)
            if order.excluded and words:
                self._update(self._job.job_id, words)
            self._happened(events.HandedOver())

        def looked(said: CommandDone, why: str) -> None:
            requeued = slurm_job.answer(self._job, said.lines).requeued
            self._happened(events.HandedOver("" if requeued else why))

        self._commands.run(("scontrol", "requeue", self._job.job_id), _GIVE_BACK_SECONDS, done)

    def _update(self, job_id: str, words: str) -> None:
        def done(answer: CommandDone) -> None:
            if answer.why:
                self._note(f"job {job_id} cannot be kept off {words}: {answer.why}")

        argv = ("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={words}")
        self._commands.run(argv, _LOOK_SECONDS, done)

    def _queue_next(self, order: actions.QueueNext) -> None:
        def found(job_id: str, why: str = "") -> None:
            self._next = job_id
            if job_id:
                self._reports.next(job_id, order.excluded)
            words = f"job {job_id} waits to go on after this one" if job_id else f"no job was queued: {why}"
            self._note(words)
            self._happened(events.NextQueued(job_id, why))

        def queued(done: CommandDone) -> None:
            job_id, why = _number(done)
            if job_id:
                found(job_id)
            else:
                self._look(lambda waiting: found(waiting, "" if waiting else why))

        def looked(waiting: str) -> None:
            if waiting:
                found(waiting)
            else:
                argv = filled(self._argv, order.excluded, self._job.job_id)
                self._commands.run(argv, _PATIENCE_SECONDS, queued)

        self._look(looked)

    def _look(self, found: Callable[[str], None]) -> None:
        """``found`` is called with the job of this run that waits for this one; empty: there is none."""
        argv = ("squeue", "-h", "--me", "-t", "PENDING", "-o", "%i|%E|%k")

        def done(answer: CommandDone) -> None:
            waiting = [line.split("|", 2) for line in answer.lines if line.count("|") >= 2]
            ours = [
                job_id
                for job_id, dependency, comment in waiting
                if f"afterany:{self._job.job_id}" in dependency.replace("(", ",").split(",")
                and self._run_id in comment
            ]
            found(ours[0] if ours and not answer.why else "")

        self._commands.run(argv, _LOOK_SECONDS, done)

    def _exclude_next(self, order: actions.ExcludeNext) -> None:
        words = excluding(self._argv, order.nodes)
        if words:
            self._update(self._next, words)
        else:
            self._note(f"{fold(order.nodes)} cannot be added to what job {self._next} excludes")

    def _drop_next(self, order: actions.DropNext) -> None:
        """A controller that is away is waited for: it does not end this job either before it is back."""
        job_id, self._next = self._next, ""
        self._takes_back = True

        def done(answer: CommandDone) -> None:
            self._takes_back = False
            if answer.why:
                self._note(f"job {job_id} could not be taken back ({answer.why}); it will end at once")
            else:
                self._reports.no_next()

        def take_back() -> None:
            self._commands.run(("scancel", job_id), _LOOK_SECONDS, unless_away)

        unless_away = self._unless_away(take_back, done)
        take_back()

    def _unless_away(
        self, again: Callable[[], None], done: Callable[[CommandDone], None]
    ) -> Callable[[CommandDone], None]:
        """Takes answers: where the controller is away ``again`` is called later, else ``done``."""
        away = ControllerAway()

        def told(answer: CommandDone) -> None:
            at = away.next_at(steady(), (answer.why,)) if answer.why else None
            if at is None:
                done(answer)
            else:
                self._commands.later(at - steady(), again)

        return told

    def drop_shapes(self, shape: int) -> None:
        """Cancel the jobs in which the run would have begun in another shape than this one.

        A controller that is away is waited for; a job that starts before ends by itself.
        """

        def done(answer: CommandDone) -> None:
            if answer.why:
                self._note(f"the jobs of other shapes end when they start: {answer.why}")

        def looked(answer: CommandDone) -> None:
            rows = [line.split("|", 1) for line in answer.lines if "|" in line]
            others = [job_id for job_id, comment in rows if self._is_other(comment, shape)]
            if answer.why or not others:
                unless_away(answer)
                return
            jobs = " and ".join(others)
            self._note(f"the run begins here, so job {jobs} of another shape is cancelled")
            self._commands.run(("scancel", *others), _LOOK_SECONDS, unless_away)

        def look() -> None:
            self._commands.run(("squeue", "-h", "--me", "-o", "%i|%k"), _LOOK_SECONDS, looked)

        unless_away = self._unless_away(look, done)
        look()

    def _is_other(self, comment: str, shape: int) -> bool:
        words = comment.split()
        ours = any(word.startswith(f"clusterrun:{self._run_id}:") for word in words)
        shapes = [word for word in words if word.startswith(SHAPE_MARK)]
        return ours and bool(shapes) and shapes[0] != f"{SHAPE_MARK}{shape}"


def _number(done: CommandDone) -> tuple[str, str]:
    # As sbatch --parsable says it: the number, and the cluster after a semicolon.
    numbers = [line.partition(";")[0] for line in done.lines if line.partition(";")[0].isdecimal()]
    if not done.why and numbers:
        return numbers[-1], ""
    said = " / ".join(line for line in done.lines if line)
    return "", done.why or f"the program {code_in_words(done.code)}: {said}"


_CARRY_OUT: dict[type, Callable[[Scheduler, Any], None]] = {
    actions.AskJob: Scheduler._ask,
    actions.Resubmit: Scheduler._resubmit,
    actions.QueueNext: Scheduler._queue_next,
    actions.ExcludeNext: Scheduler._exclude_next,
    actions.DropNext: Scheduler._drop_next,
    actions.Requeue: Scheduler._requeue,
}
