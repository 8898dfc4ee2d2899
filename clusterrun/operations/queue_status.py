"""What is said of a run that waits in Slurm's queue, for its first job or its next."""

from __future__ import annotations

from clusterrun.model.duration import moment, spoken
from clusterrun.model.record import RunState
from clusterrun.model.states import State
from clusterrun.slurm.queries import JobRow
from clusterrun.slurm_text.reasons import explain

GUESSED_SECONDS = 90 * 86400.0
"""Slurm says a year from now where jobs without a time limit are ahead: that is no estimate."""
NEVER = "will never start"


def in_queue(row: JobRow, state: RunState | None) -> bool:
    """Whether the run waits; one that was handed over does so while the nodes of its job are cleared."""
    handed_over = state is not None and state.state is State.PENDING
    return row.state is State.PENDING or (handed_over and row.word == "COMPLETING")


def words(row: JobRow, state: RunState | None, now: float) -> str:
    """Why it waits: what ended its last job, and what Slurm says."""
    why = waiting(row, now)
    if state is None:
        return why
    if row.reason == "Dependency":
        why = "waits until the job before it has ended completely"
    if state.state is State.PENDING:
        return f"{state.reason}; {why}" if state.reason and why else state.reason or why
    before = state.attempts[-1].job_id if state.attempts else ""
    return (
        f"continues in job {row.job_id}: {why}" if before not in ("", row.job_id) else f"queued again: {why}"
    )


def waiting(row: JobRow, now: float) -> str:
    """Why the job waits, what would help, and when Slurm means to start it, where it tells."""
    reason = explain(row.reason)
    if reason.never:
        return f"{NEVER}: {reason.said} ({reason.remedy.replace('JOB', row.job_id)})"
    help_ = f" ({reason.remedy.replace('JOB', row.job_id)})" if reason.remedy else ""
    known = row.start is not None and now < row.start < now + GUESSED_SECONDS
    start = row.start or 0.0
    until = f"; Slurm expects to start it about {moment(start)}, in {spoken(start - now)}" if known else ""
    return (reason.said or row.explained) + help_ + until
