"""The jobs that a run has queued itself, from the two files that say so.

Ranks may write into the run directory too, so what stands there is a hint: a number, or nothing.
Whether a job is the run's is told by the comment that Slurm keeps with it.
"""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.paths import RunPaths
from clusterrun.runs.run_documents import read_document

LONGEST = 20
"""Digits: Slurm's ids of a federation fill 32 bits."""


@frozen
class SuccessorJob:
    """``successor.json``, ``next.json``: a job of the run, and the nodes that it was queued without."""

    job_id: str
    excluded: tuple[str, ...] = ()
    format: int = contract.FORMAT

    def __post_init__(self) -> None:
        plain = self.job_id.replace("_", "", 1)
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= LONGEST):
            raise ValueError(f"{self.job_id[:40]!r} is not a job")


@frozen
class SuccessorJobs:
    """The newest job that has started beside the first, and the one that waits for its end ('': none)."""

    job_id: str = ""
    waiting: str = ""
    damage: str = ""


def further_jobs(paths: RunPaths) -> SuccessorJobs:
    """What the files say; one that is damaged says nothing and takes nothing from the other."""
    jobs, damage = [], ""
    for path in (paths.successor, paths.next):
        try:
            found = read_document(SuccessorJob, path)
            jobs.append(found.job_id if found else "")
        except ClusterrunError as error:
            jobs.append("")
            damage = damage or error.seen
    started, waiting = jobs
    return SuccessorJobs(started, "" if waiting == started else waiting, damage)
