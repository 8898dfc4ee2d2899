"""List all Slurm jobs of this user that have not ended, with the runs that some of them are."""

from __future__ import annotations

import re
from collections.abc import Collection

from clusterrun.model.frozen import frozen
from clusterrun.model.record import RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.operations.find_run import run_of_comment


@frozen
class JobLine:
    """A Slurm job of this user."""

    job_id: str  # an array that waits is one job (``41_[3-9]``)
    name: str
    state: State
    nodes: int  # 0 if Slurm does not report it
    nodelist: str
    # started_at, ends_at: seconds since the epoch; the start and the end by its time limit; None: unknown
    started_at: float | None
    ends_at: float | None
    reason: str  # why it waits, or what holds it up, in words
    run: RunStatus | None = None  # the status of the run that it is; None if clusterrun did not start it


def all_jobs(
    context: Context, states: Collection[State], pattern: str, tell: Tell = quiet
) -> tuple[JobLine, ...]:
    """Return the jobs that have not ended, the newest first. Raise ``SchedulerError`` without Slurm.

    states, pattern: only jobs in these states, and with such a name (``fnmatch``); empty: any
    """
    from fnmatch import fnmatchcase  # slow to import, so not for a bare `status`

    rows = [
        row
        for row in context.slurm().jobs()
        if not row.state.ended
        and (not states or row.state in states)
        and (not pattern or fnmatchcase(row.name, pattern))
    ]
    rows.sort(key=lambda row: [int(number) for number in re.findall(r"\d+", row.job_id)], reverse=True)
    present = set(context.store.ids())
    run_by_job = {row.job_id: run_of_comment(row.comment) for row in rows}
    ids = list(dict.fromkeys(run_id for run_id in run_by_job.values() if run_id in present))
    statuses = {status.run_id: status for status in context.inquiry(tell).statuses(ids, skip_missing=True)}
    lines = []
    for row in rows:
        start, end = (None, None) if row.state is State.PENDING else (row.start, row.end)
        run = statuses.get(run_by_job[row.job_id])
        about = (row.job_id, row.name, row.state, row.nodes, row.nodelist, start, end, row.explained)
        lines.append(JobLine(*about, run))
    return tuple(lines)
