"""Define the errors that users can meet: the problem, the remedy, and the exit code."""

from __future__ import annotations

from clusterrun.model.contract import ExitCode


class ClusterrunError(Exception):
    """Base of all errors that are an answer to the user, not a bug.

    ``seen`` is the problem. ``remedy`` is the way out, with an exact command if possible. ``code`` is the
    exit code of the process.
    """

    code = ExitCode.FAILED

    def __init__(self, seen: str, remedy: str = "") -> None:
        super().__init__(seen)
        self.seen = seen
        self.remedy = remedy

    def __str__(self) -> str:
        return self.seen + ("\n" + self.remedy if self.remedy else "")


def system_reason(error: OSError) -> str:
    """Return why the operating system refused, in lower case."""
    return (error.strerror or str(error)).lower()


class BadInput(ClusterrunError):
    """The command line, a configuration file or an argument is not valid (exit code 2)."""

    code = ExitCode.USAGE


class SchedulerError(ClusterrunError):
    """Slurm is missing, does not answer, or refused (exit code 4)."""

    code = ExitCode.SCHEDULER


class SchedulerUnreachable(SchedulerError):
    """Slurm gave no answer, so the result of the query is unknown."""


class NoSuchRun(ClusterrunError):
    """No run has this id, job id or name (exit code 5)."""

    code = ExitCode.NO_SUCH_RUN
