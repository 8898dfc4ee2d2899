"""What Slurm is asked about this job, and how its answer is read; starts nothing and decides nothing.

While a job is being ended Slurm shows it as COMPLETING, whatever the cause. The cause shows beside:
a reason for the time limit, a time of preemption, one restart more than this job knows of where it
was put back into the queue. Without any of them its owner or an administrator cancelled it.
"""

from __future__ import annotations

from clusterrun.coordinator.events import JobTold
from clusterrun.coordinator.requeue import PREEMPTION, TIME_LIMIT
from clusterrun.coordinator.termination import CANCELLED, REQUEUE, UNKNOWN
from clusterrun.model.frozen import frozen
from clusterrun.model.states import State
from clusterrun.slurm_text import job_row, job_states

LIMIT_SECONDS = 3.0
ENVIRONMENT = (("SLURM_TIME_FORMAT", "%s"),)
"""Times in seconds since the epoch, whatever the site's time zone."""
_FIELDS = ("State", "Reason", "StartTime", "EndTime", "RestartCnt", "PreemptTime")
_MOST_SKEW = 600.0
"""A prolog may keep a job from beginning for minutes; what is more is a clock that is wrong."""


@frozen
class SlurmJob:
    """This job: its number, how often it had been restarted when it began, and when it did.

    ``began_wall`` is on this node's clock, seconds since the epoch.
    """

    job_id: str
    restarts: int
    began_wall: float


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
        return JobTold(PREEMPTION, _end(job, start, end) if state.full in job_states.HOLDS_NODES else None)
    if state.full in job_states.HOLDS_NODES:
        return JobTold("", _end(job, start, end))
    if state.state is State.UNKNOWN:
        return JobTold(UNKNOWN)
    return JobTold(CANCELLED)


def _end(job: SlurmJob, start: str, end: str) -> float | None:
    """When the job ends by this node's clock; the scheduler's may be another one."""
    if not end.isdecimal() or not start.isdecimal():
        return None
    skew = job.began_wall - float(start)
    return float(end) + (skew if abs(skew) > _MOST_SKEW else 0.0)
