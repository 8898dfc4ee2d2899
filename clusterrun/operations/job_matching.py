"""Match Slurm's jobs with runs, and find the job that shows how a run is.

A job number alone proves nothing. Slurm reuses numbers after its highest one or after a controller lost its
state, and a run directory may hold any number. The comment of a job holds its run's token, and its script is
in the run directory. The accounting keeps neither by default. Then the job's name must match, and only the
newest run with that job number has the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import expand
from clusterrun.model.record import RunRecord
from clusterrun.model.states import State
from clusterrun.model.visible import job_name
from clusterrun.operations.run_files import RunFiles
from clusterrun.slurm.queries import JobRow

# Seconds by which the clocks of a controller and of this machine may differ. An allocation starts before its
# runs, so a job with its number that began later is another job.
SKEW_SECONDS = 600.0
_MARK = re.compile(r"clusterrun:[^:\s]*:(\S+)")


@frozen
class MatchedJob:
    """The job of a run that shows how the run is."""

    record: RunRecord  # the run's record with the number of that job
    row: JobRow  # that job's row
    own: str  # the run's first job


class Jobs:
    """Rows of Slurm, ready to be matched with runs."""

    def __init__(
        self,
        rows: Iterable[JobRow],
        other_cluster: Callable[[RunRecord], str] = lambda _: "",
        newest: Callable[[str], str] = lambda _: "",
    ) -> None:
        """``other_cluster`` returns the cluster that holds a run's jobs; '' if it is the cluster of the rows.

        On another cluster a row with the same number is another job. ``newest`` returns the newest run with a
        job of a number.
        """
        self._other_cluster, self._newest = other_cluster, newest
        self._by_id: dict[str, JobRow] = {}
        self._by_token: dict[str, list[JobRow]] = {}
        self._by_run: dict[str, list[JobRow]] = {}
        for row in rows:
            mark = _MARK.search(row.comment)
            if row.command and "_" not in row.job_id:  # the tasks of an array are one run each
                self._by_run.setdefault(os.path.basename(os.path.dirname(row.command)), []).append(row)
            for task_row in _tasks(row) if "_[" in row.job_id else (row,):
                self._by_id[task_row.job_id] = task_row
                if mark:
                    task = task_row.job_id.partition("_")[2]
                    token = f"{mark[1]}_{task}" if task else mark[1]
                    self._by_token.setdefault(token, []).append(task_row)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by_id

    def of(self, record: RunRecord, *hints: str) -> list[JobRow]:
        """Return the rows of a run's jobs, oldest job first. ``hints`` are ids that may belong to the run."""
        if record.in_allocation:
            row = None if self._other_cluster(record) else self._by_id.get(record.job_id)
            return [row] if row and (row.start or 0.0) <= record.submitted_at + SKEW_SECONDS else []
        marked = (*self._by_run.get(record.run_id, ()), *self._by_token.get(record.token, ()))
        named = {row.job_id: row for row in marked}
        if not named and self._other_cluster(record):
            return []
        for job_id in (record.job_id, *hints):
            row = self._by_id.get(job_id)
            if row and _unmarked(row, record) and self._newest(job_id) in ("", record.run_id):
                named[job_id] = row
        return sorted(named.values(), key=lambda row: _number(row.job_id))

    def speaking(self, files: RunFiles) -> MatchedJob | None:
        """Return the job that shows how the run is: its own, or the job that continues it.

        The own job may be unknown: the answer to the submission was lost, Slurm has forgotten the job, or the
        run directory names a wrong one. Then the oldest job that has not ended counts as its own.
        """
        # Slurm keeps the row of a refused job for a while, as FAILED and without nodes.
        rows = [row for row in self.of(files.record, files.waiting) if row.word != "FAILED" or row.nodelist]
        own_row = next((row for row in rows if row.job_id == files.record.job_id), None)
        if own_row is None:
            own_row = next((row for row in rows if not row.state.ended), rows[-1] if rows else None)
        if own_row is None:
            return None
        row = own_row
        state = files.state.state if files.state else State.UNKNOWN
        is_continuing = state is State.PENDING and own_row.word == "COMPLETING"
        if not state.ended and (own_row.state.ended or is_continuing):
            first = _number(own_row.job_id)
            later = [row for row in rows if row.job_id == files.waiting or _number(row.job_id) > first]
            # The newest job that has not ended, or the newest job if all have.
            row = max(reversed(later), key=lambda row: not row.state.ended, default=own_row)
        return MatchedJob(replace(files.record, job_id=row.job_id), row, own_row.job_id)


def _tasks(row: JobRow) -> list[JobRow]:
    """Return a row for each task of an array. Slurm shows the waiting tasks of an array in one row."""
    listed, throttled, _ = row.job_id.partition("%")  # 41_[0-3,7%2]: two at once
    try:
        return [replace(row, job_id=job_id) for job_id in expand(f"{listed}]" if throttled else listed)]
    except BadInput:  # an array of somebody else, with a step
        return [row]


def _number(job_id: str) -> tuple[int, str, str]:
    job, _, task = job_id.partition("_")
    return len(job), job, task


def _unmarked(row: JobRow, record: RunRecord) -> bool:
    """Return whether a job without our comment has the run's name. A site may keep no comments."""
    names = {job_name(record.spec.name or record.name)}
    names |= {job_name(record.name.rpartition(".")[0])} if record.sweep else set()
    names |= {entry.partition("=")[2] for entry in record.spec.sbatch if entry.startswith("job-name=")}
    return not _MARK.search(row.comment) and row.name in names
