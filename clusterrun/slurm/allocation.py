"""Read the nodes and GPUs of an allocation of the user from ``scontrol show job``."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand, fold
from clusterrun.slurm.foreign_job import read_shown
from clusterrun.slurm.queries import JobRow, gpu_count

_STATE = re.compile(r"^ +JobState=(\S+)", re.MULTILINE)
_SHARE = re.compile(r"^ +Nodes=\S+ .*?GRES=(\S*)", re.MULTILINE)


@frozen
class Allocation:
    """A running job: its nodes in Slurm's order, and the least number of GPUs that it has on a node."""

    job_id: str
    nodes: tuple[str, ...]
    gpus: int = 0
    name: str = ""
    comment: str = ""

    @property
    def row(self) -> JobRow:
        """Return the job as a row of squeue. Columns that are not in the allocation are empty."""
        return JobRow(
            job_id=self.job_id,
            word="RUNNING",
            reason="",
            nodelist=fold(self.nodes),
            start=None,
            end=None,
            name=self.name,
            comment=self.comment,
        )


def read(job_id: str, out: str) -> Allocation:
    """Return the allocation in ``out``. Raises ``BadInput`` if the job is not running on nodes."""
    job, states = read_shown(job_id, out), _STATE.findall(out)
    if job is None or states != ["RUNNING"] or not job.nodelist:
        problem = f"is {' and '.join(states)}, not one that is RUNNING" if states else "is not known to Slurm"
        raise BadInput(
            f"job {job_id} (SLURM_JOB_ID) {problem}", "squeue --me shows your jobs; salloc makes one"
        )
    return Allocation(
        job_id=job_id,
        nodes=expand(job.nodelist),
        gpus=min(map(gpu_count, _SHARE.findall(out)), default=0),
        name=job.name,
        comment=job.comment,
    )
