"""Every error a user can meet: what was seen, what to do about it, and the exit code; knows no terminal."""

from __future__ import annotations

from clusterrun.model.contract import ExitCode


class ClusterrunError(Exception):
    """Base of all errors that are the answer to a user, not a bug.

    ``seen`` says what happened, ``remedy`` what to do about it (an exact command where there
    is one); ``code`` is what the process exits with.
    """

    code = ExitCode.FAILED

    def __init__(self, seen: str, remedy: str = "") -> None:
        super().__init__(seen)
        self.seen = seen
        self.remedy = remedy

    def __str__(self) -> str:
        return self.seen + ("\n" + self.remedy if self.remedy else "")


class BadInput(ClusterrunError):
    """The command line, a configuration file or an argument cannot be meant (exit code 2)."""

    code = ExitCode.USAGE


class SchedulerError(ClusterrunError):
    """Slurm is missing, does not answer, or refused (exit code 4)."""

    code = ExitCode.SCHEDULER


class SchedulerUnreachable(SchedulerError):
    """Slurm gave no answer: nothing is known about the question that was asked."""


class NoSuchRun(ClusterrunError):
    """No run goes by that id, job id or name (exit code 5)."""

    code = ExitCode.NO_SUCH_RUN
