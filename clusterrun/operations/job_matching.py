"""Which of Slurm's jobs are a run's, and which of them speaks for it.

A number alone proves nothing: Slurm gives it away again, after its last one or when a controller lost
its state, and what stands in a run directory may be anything. The comment of a job holds its run's token;
where a site keeps no comments (its accounting keeps none unless told to), the job's name must do, for the
newest run that had a job of that number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from clusterrun.model.contract import SHAPE_MARK
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import expand
from clusterrun.model.record import RunRecord
from clusterrun.model.states import State
from clusterrun.model.visible import job_name
from clusterrun.operations.run_files import RunFiles
from clusterrun.slurm.queries import JobRow

SKEW_SECONDS = 600.0
"""How far the clocks of a controller and of this machine may be apart. An allocation is there before its
runs: a job of its number that began later is another one."""
_MARK = re.compile(r"clusterrun:[^:\s]*:(\S+)")


@frozen
class MatchedJob:
    """The run's record with the job that speaks for it, that job's row, and the job of the record itself."""

    record: RunRecord
    row: JobRow
    own: str


class Jobs:
    """Rows of Slurm, to be asked for those of one run after the other."""

    def __init__(
        self,
        rows: Iterable[JobRow],
        other_cluster: Callable[[RunRecord], str] = lambda _: "",
        newest: Callable[[str], str] = lambda _: "",
    ) -> None:
        """``other_cluster`` names the cluster that holds a run's jobs, where it is not that of the rows.

        A row of the same number is another job then. ``newest`` is the newest run with a job of that number.
        """
        self._other_cluster, self._newest = other_cluster, newest
        self._by_id: dict[str, JobRow] = {}
        self._by_token: dict[str, list[JobRow]] = {}
        for row in rows:
            mark = _MARK.search(row.comment)
            for one in _tasks(row) if "_[" in row.job_id else (row,):
                self._by_id[one.job_id] = one
                if mark:
                    task = one.job_id.partition("_")[2]
                    token = f"{mark[1]}_{task}" if task else mark[1]
                    self._by_token.setdefault(token, []).append(one)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by_id

    def of(self, record: RunRecord, *hints: str) -> list[JobRow]:
        """The rows of a run's jobs, oldest job first; ``hints`` are ids that may be its."""
        if record.in_allocation:
            row = None if self._other_cluster(record) else self._by_id.get(record.job_id)
            return [row] if row and (row.start or 0.0) <= record.submitted_at + SKEW_SECONDS else []
        named = {row.job_id: row for row in self._by_token.get(record.token, ())}
        if not named and self._other_cluster(record):
            return []
        for job_id in (record.job_id, *hints):
            row = self._by_id.get(job_id)
            if row and _unmarked(row, record) and self._newest(job_id) in ("", record.run_id):
                named[job_id] = row
        return sorted(named.values(), key=lambda row: _number(row.job_id))

    def speaking(self, files: RunFiles) -> MatchedJob | None:
        """The job that tells how the run is: its own, or the one that continues where that one is over.

        Where its own is not known (the answer to the submission was lost, Slurm has forgotten the
        job, what the run directory names is none of the run's), the oldest that is not over is.
        """
        # Of a job that it refused Slurm keeps a row for a while, failed and without nodes.
        rows = [row for row in self.of(files.record, files.waiting) if row.word != "FAILED" or row.nodelist]
        if files.shape is not None:
            mark = f"{SHAPE_MARK}{files.shape}"
            rows = [row for row in rows if mark in row.comment.split()]
        own = next((row for row in rows if row.job_id == files.record.job_id), None)
        if own is None:
            own = next((row for row in rows if not row.state.ended), rows[-1] if rows else None)
        if own is None:
            return None
        row = own
        if _is_over(files, own):
            first = _number(own.job_id)
            later = [one for one in rows if one.job_id == files.waiting or _number(one.job_id) > first]
            # The newest, and before those that are over one that is not.
            row = max(reversed(later), key=lambda one: not one.state.ended, default=own)
        return MatchedJob(replace(files.record, job_id=row.job_id), row, own.job_id)


def _is_over(files: RunFiles, own: JobRow) -> bool:
    """Whether the run's own job has nothing more to say, though the run itself has not ended."""
    state = files.state.state if files.state else State.UNKNOWN
    handed_over = state is State.PENDING and own.word == "COMPLETING"
    return not state.ended and (own.state.ended or handed_over)


def _tasks(row: JobRow) -> list[JobRow]:
    """A row for each task of an array: all tasks have one comment, and those that wait stand in one row."""
    listed, throttled, _ = row.job_id.partition("%")  # 41_[0-3,7%2]: of them two at once
    try:
        return [replace(row, job_id=job_id) for job_id in expand(f"{listed}]" if throttled else listed)]
    except BadInput:  # somebody's own array, with a step
        return [row]


def _number(job_id: str) -> tuple[int, str, str]:
    job, _, task = job_id.partition("_")
    return len(job), job, task


def _unmarked(row: JobRow, record: RunRecord) -> bool:
    """A job without a comment of ours (a site may keep none) that has the run's name."""
    names = {job_name(record.spec.name or record.name)}
    names |= {job_name(record.name.rpartition(".")[0])} if record.sweep else set()
    names |= {entry.partition("=")[2] for entry in record.spec.sbatch if entry.startswith("job-name=")}
    return not _MARK.search(row.comment) and row.name in names
