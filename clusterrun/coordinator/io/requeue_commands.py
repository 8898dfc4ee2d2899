"""Queues jobs that go on with this run, gives this one back, takes one back; decides nothing.

A scheduler may take a job and lose its answer. So the queue is asked first, and again after an
answer that says no: a job that waits for this one, and is of this run, is the one.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterrun.coordinator.io.report_files import ReportFiles
from clusterrun.model.contract import SHAPE_MARK
from clusterrun.model.hostlist import fold
from clusterrun.runtime.commands import CommandDone, CommandRunner
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.exit_status import code_in_words
from clusterrun.slurm_text.controller_away import ControllerAway
from clusterrun.slurm_text.exclude_list import excluding, filled

_PATIENCE_SECONDS = 100.0
"""A scheduler under load takes its time; whoever waits for the answer waits a little longer still."""
_LOOK_SECONDS = 10.0
_GIVE_BACK_SECONDS = 30.0


class RequeueCommands:
    """``job_id`` and ``run_id`` are ours; ``note`` takes what went wrong and ends nothing."""

    def __init__(
        self,
        commands: CommandRunner,
        filing: ReportFiles,
        job_id: str,
        run_id: str,
        note: Callable[[str], None],
    ) -> None:
        self._commands, self._filing, self._note = commands, filing, note
        self._job_id, self._run_id = job_id, run_id
        self._next = ""
        self.takes_back = False

    # --- now, instead of this job ---

    def resubmit(self, argv: tuple[str, ...], told: Callable[[str, str], None]) -> None:
        """Queue by ``argv`` as it stands; ``told(job_id, why)``."""
        self._commands.run(argv, _PATIENCE_SECONDS, lambda done: told(*_number(done)))

    def requeue(self, argv: tuple[str, ...], excluded: tuple[str, ...], told: Callable[[str], None]) -> None:
        """Give this job back, to start again without ``excluded``; ``told(why not)``.

        ``argv`` queues such a job: what it excludes anyway stays excluded.
        """

        def done(answer: CommandDone) -> None:
            words = excluding(argv, excluded)
            if not answer.why and excluded and words:
                self._update(self._job_id, words)
            told(answer.why)

        self._commands.run(("scontrol", "requeue", self._job_id), _GIVE_BACK_SECONDS, done)

    # --- instead of other jobs ---

    def drop_shapes(self, shape: int) -> None:
        """Cancel the jobs in which the run would have begun in another shape than this one.

        A controller that is away is waited for; a job that starts before ends by itself.
        """
        away = ControllerAway()

        def done(answer: CommandDone) -> None:
            again = away.next_at(steady(), (answer.why,)) if answer.why else None
            if again is not None:
                self._commands.later(again - steady(), look)
            elif answer.why:
                self._note(f"the jobs of other shapes end when they start: {answer.why}")

        def looked(answer: CommandDone) -> None:
            rows = [line.split("|", 1) for line in answer.lines if "|" in line]
            others = [job_id for job_id, comment in rows if self._is_other(comment, shape)]
            if answer.why or not others:
                done(answer)
            else:
                self._note(
                    f"the run begins here, so job {' and '.join(others)} of another shape is cancelled"
                )
                self._commands.run(("scancel", *others), _LOOK_SECONDS, done)

        def look() -> None:
            self._commands.run(("squeue", "-h", "--me", "-o", "%i|%k"), _LOOK_SECONDS, looked)

        look()

    def _is_other(self, comment: str, shape: int) -> bool:
        words = comment.split()
        ours = any(word.startswith(f"clusterrun:{self._run_id}:") for word in words)
        shapes = [word for word in words if word.startswith(SHAPE_MARK)]
        return ours and bool(shapes) and shapes[0] != f"{SHAPE_MARK}{shape}"

    # --- after this job ---

    def queue(
        self, argv: tuple[str, ...], excluded: tuple[str, ...], told: Callable[[str, str], None]
    ) -> None:
        """See that a job waits for the end of this one; ``told(job_id, why)``."""

        def found(job_id: str, why: str) -> None:
            self._next = job_id
            if job_id:
                self._filing.next(job_id, excluded)
            told(job_id, why)

        def queued(done: CommandDone) -> None:
            job_id, why = _number(done)
            if job_id:
                found(job_id, "")
            else:
                self._look(lambda waiting: found(waiting, "" if waiting else why))

        def looked(waiting: str) -> None:
            if waiting:
                found(waiting, "")
            else:
                self._commands.run(filled(argv, excluded, self._job_id), _PATIENCE_SECONDS, queued)

        self._look(looked)

    def _look(self, found: Callable[[str], None]) -> None:
        """``found`` is called with the job of this run that waits for this one; empty: there is none."""
        argv = ("squeue", "-h", "--me", "-t", "PENDING", "-o", "%i|%E|%k")

        def done(answer: CommandDone) -> None:
            waiting = [line.split("|", 2) for line in answer.lines if line.count("|") >= 2]
            ours = [
                job_id
                for job_id, dependency, comment in waiting
                if f"afterany:{self._job_id}" in dependency.replace("(", ",").split(",")
                and self._run_id in comment
            ]
            found(ours[0] if ours and not answer.why else "")

        self._commands.run(argv, _LOOK_SECONDS, done)

    def exclude(self, argv: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        """Keep the waiting job off ``nodes``."""
        words = excluding(argv, nodes)
        if words:
            self._update(self._next, words)
        else:
            self._note(f"{fold(nodes)} cannot be added to what job {self._next} excludes")

    def _update(self, job_id: str, words: str) -> None:
        def done(answer: CommandDone) -> None:
            if answer.why:
                self._note(f"job {job_id} cannot be kept off {words}: {answer.why}")

        argv = ("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={words}")
        self._commands.run(argv, _LOOK_SECONDS, done)

    def drop(self) -> None:
        """Take the waiting job back.

        A controller that is away is waited for: it does not end this job either before it is back.
        """
        job_id, self._next = self._next, ""
        away, self.takes_back = ControllerAway(), True

        def done(answer: CommandDone) -> None:
            again = away.next_at(steady(), (answer.why,)) if answer.why else None
            if again is not None:
                self._commands.later(again - steady(), take_back)
                return
            self.takes_back = False
            if answer.why:
                self._note(f"job {job_id} could not be taken back ({answer.why}); it will end at once")
            else:
                self._filing.no_next()

        def take_back() -> None:
            self._commands.run(("scancel", job_id), _LOOK_SECONDS, done)

        take_back()


def _number(done: CommandDone) -> tuple[str, str]:
    # As sbatch --parsable says it: the number, and the cluster after a semicolon.
    numbers = [line.partition(";")[0] for line in done.lines if line.partition(";")[0].isdecimal()]
    if not done.why and numbers:
        return numbers[-1], ""
    said = " / ".join(line for line in done.lines if line)
    return "", done.why or f"the program {code_in_words(done.code)}: {said}"
