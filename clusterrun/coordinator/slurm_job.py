"""Build the question to Slurm about this job, and read the answer; starts and decides nothing.

Slurm shows a job that is being ended as COMPLETING, whatever the cause. Other columns show the cause: the
reason names a time limit, there is a time of preemption, or a requeued job has one restart more. Without any
of them its owner or an administrator cancelled the job.
"""

from __future__ import annotations

from clusterrun.coordinator.events import JobTold
from clusterrun.coordinator.requeue import PREEMPTION, TIME_LIMIT
from clusterrun.coordinator.termination import CANCELLED, REQUEUE, UNKNOWN
from clusterrun.model.frozen import frozen
from clusterrun.model.states import State
from clusterrun.slurm_text import job_row, job_states

LIMIT_SECONDS = 3.0
# Slurm prints times in seconds since the epoch, whatever the site's time zone.
ENVIRONMENT = (("SLURM_TIME_FORMAT", "%s"),)
_FIELDS = ("State", "Reason", "StartTime", "EndTime", "RestartCnt", "PreemptTime")
# A prolog may delay a job for minutes. A longer difference means that a clock is wrong.
_MOST_SKEW = 600.0


@frozen
class SlurmJob:
    """This job at its beginning."""

    job_id: str
    restarts: int  # how often it had been restarted
    began_wall: float  # this node's clock, seconds since the epoch


def question(job: SlurmJob) -> tuple[str, ...]:
    return job_row.question(job.job_id, _FIELDS)


def answer(job: SlurmJob, lines: tuple[str, ...]) -> JobTold:
    cells = job_row.cells(lines, _FIELDS)
    if not cells:
        return JobTold(UNKNOWN)
    word, reason, start, end, restarts, preempted = cells
    state = job_states.read(word)
    was_preempted = preempted.isdecimal() and preempted != "0"
    if restarts.isdecimal() and int(restarts) > job.restarts:
        return JobTold(PREEMPTION if was_preempted else REQUEUE, requeued=True)
    if reason == "TimeLimit" or state.full == "TIMEOUT":
        return JobTold(TIME_LIMIT)
    if was_preempted or state.full == "PREEMPTED":
        # Slurm 26.05 shows no end of a grace time if the job had no time limit.
        in_grace = state.full in job_states.HOLDS_NODES
        return JobTold(PREEMPTION, _end(job, start, end) if in_grace else None, in_grace=in_grace)
    if state.full in job_states.HOLDS_NODES:
        return JobTold("", _end(job, start, end), halted=state.full in job_states.HALTED)
    if state.state is State.UNKNOWN:
        return JobTold(UNKNOWN)
    return JobTold(CANCELLED)


def _end(job: SlurmJob, start: str, end: str) -> float | None:
    """Return when the job ends by this node's clock, which may differ from the scheduler's; None: unknown."""
    if not end.isdecimal() or not start.isdecimal():
        return None
    skew = job.began_wall - float(start)
    return float(end) + (skew if abs(skew) > _MOST_SKEW else 0.0)
