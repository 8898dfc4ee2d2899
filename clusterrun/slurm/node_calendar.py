"""When how many nodes are free, from the jobs that run and the starts that Slurm has planned.

A node on which any job runs counts as taken until the last of them reaches its time limit: jobs that end
earlier, or share nodes, let others start sooner than this says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand
from clusterrun.slurm.queries import NodeRow, QueueRow

USABLE = ("idle", "mixed", "allocated", "completing", "planned", "mix", "alloc", "comp")
"""What a node's state begins with, where jobs are started on it."""
BUSY = ("mixed", "allocated", "completing", "mix", "alloc", "comp")
NOT_RESPONDING = "*"
UNKNOWN = "unk"
"""What a node's state begins with until it registers with a controller that has just started."""
ENDLESS = float("inf")
"""The end of a job without a time limit."""


@frozen
class NodeCalendar:
    """The nodes of a partition, each with the times in which it is taken (seconds since the epoch).

    ``hidden`` nodes are taken by jobs that this user is not shown: nobody can say until when. ``unplanned``
    jobs wait, and Slurm has planned no start for them.
    """

    taken: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    hidden: tuple[str, ...]
    unplanned: int

    def earliest(self, nodes: int, seconds: float, now: float) -> tuple[float, int] | None:
        """When so many nodes are first free for so long, and how many are; None if that is not seen."""
        ends = {end for _, times in self.taken for _, end in times if now < end < ENDLESS}
        for at in sorted({now, *ends}):
            until = at + seconds
            free = sum(all(end <= at or start >= until for start, end in times) for _, times in self.taken)
            if free >= nodes:
                return at, free
        return None


def calendar(
    nodes: Sequence[NodeRow], queue: Sequence[QueueRow], partition: str, gpus: int = 0, excluded: str = ""
) -> NodeCalendar:
    """The calendar of ``partition``'s usable nodes that have so many GPUs and are not ``excluded``."""
    without = _names(excluded)
    here = {one.name: one for one in nodes if one.partition == partition and _usable(one, gpus)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in here if name not in without}
    runs: set[str] = set()
    unplanned = 0
    for job in queue:
        waits = job.word == "PENDING"
        places = job.planned_nodes if waits else job.nodelist
        if not places or (waits and job.start is None):
            unplanned += waits and partition in job.partition.split(",")
            continue
        times = (job.start or 0.0, ENDLESS if job.end is None else job.end)
        names = _names(places)
        runs |= frozenset() if waits else names
        for name in names & taken.keys():
            taken[name].append(times)
    hidden = [name for name in taken if here[name].state.startswith(BUSY) and name not in runs]
    known = [(name, tuple(when)) for name, when in taken.items() if name not in hidden]
    return NodeCalendar(tuple(known), tuple(hidden), unplanned)


def away(nodes: Sequence[NodeRow], partition: str, least: int, wanted: str = "") -> tuple[str, ...]:
    """The nodes that take no job now and that a job waits for: ``wanted``, or too few others are left."""
    here = {one.name: one for one in nodes if one.partition == partition}
    asked = [one for name, one in here.items() if not wanted or name in _names(wanted)]
    out = tuple(one.name for one in asked if not _usable(one, 0))
    return out if wanted or len(asked) - len(out) < least <= len(asked) else ()


def _usable(node: NodeRow, gpus: int) -> bool:
    return node.state.startswith(USABLE) and NOT_RESPONDING not in node.state and node.gpus >= gpus


@cache
def _names(text: str) -> frozenset[str]:
    """The nodes of a list, which many jobs and each shape share; none where it cannot be read."""
    try:
        return frozenset(expand(text) if text and "/" not in text else ())
    except BadInput:
        return frozenset()


def seconds_of(limit: str) -> float | None:
    """A time limit as sinfo writes it, ``1-00:00:00``; None for none."""
    try:
        return float(parse(limit))
    except BadInput:
        return None
