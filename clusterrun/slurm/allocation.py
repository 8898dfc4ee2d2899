"""What an allocation of the user's holds: its nodes and their GPUs, as scontrol tells."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand, fold
from clusterrun.slurm.queries import JobRow, gpus

_STATE = re.compile(r"^ +JobState=(\S+)", re.MULTILINE)
_NAME = re.compile(r"^JobId=\S+ (?:.* )?JobName=(.*)$", re.MULTILINE)
_COMMENT = re.compile(r"^ +Comment=(.*)$", re.MULTILINE)
_NODES = re.compile(r"^ +NodeList=(\S+)", re.MULTILINE)
_SHARE = re.compile(r"^ +Nodes=\S+ .*?GRES=(\S*)", re.MULTILINE)


@frozen
class Allocation:
    """A job that runs: its nodes in Slurm's order, and the GPUs that it has on each of them (at least)."""

    job_id: str
    nodes: tuple[str, ...]
    gpus: int = 0
    name: str = ""
    comment: str = ""

    @property
    def row(self) -> JobRow:
        """The same as squeue would tell it, as far as it is known here."""
        return JobRow(self.job_id, "RUNNING", "", fold(self.nodes), None, None, self.name, self.comment)


def argv(job_id: str) -> tuple[str, ...]:
    """The question; with details, for of GPUs that a site does not count only these tell."""
    return ("scontrol", "show", "job", "--details", job_id)


def read(job_id: str, out: str) -> Allocation:
    """The answer. Raises ``BadInput`` if the job holds no nodes."""
    states, nodes = _STATE.findall(out), _NODES.findall(out)
    if len(states) != 1 or states != ["RUNNING"] or len(nodes) != 1:
        seen = f"is {' and '.join(states)}, not one that is RUNNING" if states else "is not known to Slurm"
        raise BadInput(f"job {job_id} (SLURM_JOB_ID) {seen}", "squeue --me shows your jobs; salloc makes one")
    name, comment = (next(iter(one.findall(out)), "") for one in (_NAME, _COMMENT))
    return Allocation(job_id, expand(nodes[0]), min(map(gpus, _SHARE.findall(out)), default=0), name, comment)
