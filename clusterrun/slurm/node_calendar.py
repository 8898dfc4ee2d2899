"""Compute when nodes become free, from running jobs, reservations and the starts that Slurm has planned.

A node counts as taken until the last of its jobs reaches its time limit. Jobs may start sooner, because
other jobs end early or share nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand
from clusterrun.model.spec import JobSpec
from clusterrun.slurm.queries import NodeRow, QueueRow, ReservationRow

# First words of the state of a node on which Slurm starts jobs.
USABLE = ("idle", "mixed", "allocated", "completing", "planned", "mix", "alloc", "comp")
BUSY = ("mixed", "allocated", "completing", "mix", "alloc", "comp")
# First words of the state of an idle node in a reservation.
RESERVED = ("reserved", "maint", "resv")
NOT_RESPONDING = "*"
# First word of the state of a node that has not registered with a restarted controller yet.
UNKNOWN = "unk"
# End of a job without a time limit.
ENDLESS = float("inf")


@frozen
class NodeCalendar:
    """The nodes of a partition, each with the intervals in which it is taken (seconds since the epoch)."""

    taken: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    hidden: tuple[str, ...]  # nodes with jobs that this user may not see, so their end is unknown
    unplanned: int  # jobs that wait without a planned start
    required: frozenset[str] = frozenset()  # nodes that the run needs

    def earliest(self, nodes: int, seconds: float, now: float) -> tuple[float, int] | None:
        """Return the first time when ``nodes`` nodes are free for ``seconds``, and how many are.

        None if there is no such time.
        """
        ends = {end for _, times in self.taken for _, end in times if now < end < ENDLESS}
        for at in sorted({now, *ends}):
            until = at + seconds
            free = {
                name for name, times in self.taken if all(end <= at or start >= until for start, end in times)
            }
            if len(free) >= nodes and self.required <= free:
                return at, len(free)
        return None


def calendar(
    nodes: Sequence[NodeRow],
    queue: Sequence[QueueRow],
    reservations: Sequence[ReservationRow],
    partition: str,
    spec: JobSpec,
) -> NodeCalendar:
    """Return the calendar of the nodes of ``partition`` that the run may use."""
    own = next((row for row in reservations if row.name == spec.reservation), None)
    states: dict[str, str] = {}
    for node in nodes:
        is_reserved = node.state.startswith(RESERVED) and NOT_RESPONDING not in node.state
        is_allowed = node.name not in _names(spec.exclude) and (not own or node.name in _names(own.nodelist))
        is_large_enough = node.partition == partition and node.gpus >= spec.gpus
        if is_allowed and is_large_enough and (is_reserved or is_usable(node.state)):
            states[node.name] = node.state
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in states}
    for row in reservations:
        # The run may use its own reservation only, and only during its time.
        times = [(0.0, row.start), (row.end, ENDLESS)] if row is own else [(row.start, row.end)]
        for name in _names(row.nodelist) & taken.keys():
            taken[name] += times
    running: set[str] = set()
    unplanned = 0
    for job in queue:
        is_waiting = job.word == "PENDING"
        nodelist = job.planned_nodes if is_waiting else job.nodelist
        if not nodelist or (is_waiting and job.start is None):
            unplanned += is_waiting and partition in job.partition.split(",")
            continue
        names = _names(nodelist)
        if not is_waiting:
            running |= names
        for name in names & taken.keys():
            taken[name].append((job.start or 0.0, ENDLESS if job.end is None else job.end))
    # Slurm hides jobs of others on some sites. Such a node is busy, and no job in the queue runs on it.
    hidden = tuple(name for name in taken if states[name].startswith(BUSY) and name not in running)
    times_by_node = tuple((name, tuple(times)) for name, times in taken.items() if name not in hidden)
    return NodeCalendar(times_by_node, hidden, unplanned, _names(spec.nodelist))


def away(nodes: Sequence[NodeRow], partition: str, least: int, required: str = "") -> tuple[str, ...]:
    """Return the unusable nodes for which a job waits.

    These are nodes that it requires, or all of them if too few usable nodes remain.
    """
    partition_nodes = {node.name: node for node in nodes if node.partition == partition}
    candidates = [node for name, node in partition_nodes.items() if not required or name in _names(required)]
    out = tuple(node.name for node in candidates if not is_usable(node.state))
    return out if required or len(candidates) - len(out) < least <= len(candidates) else ()


def is_usable(state: str) -> bool:
    """Return whether Slurm starts jobs on a node in ``state``."""
    return state.startswith(USABLE) and NOT_RESPONDING not in state


@cache
def _names(text: str) -> frozenset[str]:
    """Return the nodes of a host list; none if it cannot be parsed.

    Many jobs and shapes share the same list.
    """
    try:
        return frozenset(expand(text) if "/" not in text else ())
    except BadInput:
        return frozenset()


def seconds_of(limit: str) -> float | None:
    """Return the seconds of a time limit as sinfo writes it, ``1-00:00:00``; None if there is no limit."""
    try:
        return float(parse(limit))
    except BadInput:
        return None
