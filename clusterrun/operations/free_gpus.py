"""Find the free GPUs of each partition and type, and when the next ones become free."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand
from clusterrun.operations.context import Context
from clusterrun.slurm.node_calendar import is_usable
from clusterrun.slurm.queries import GpuRow, QueueRow

# Beginning of the state of a node whose processors are all taken.
FULL = "alloc"


@frozen
class FreeGpus:
    """The GPUs of one type in one partition."""

    partition: str
    gpu_type: str  # '': the site names none
    total: int
    free: int
    # GPUs on which Slurm starts no job: the node is drained, down or reserved, or the partition is closed.
    unusable: int
    free_nodes: int  # nodes whose GPUs are all free
    most_on_node: int  # most free GPUs on one node
    # When a job ends next at its time limit on a node without all GPUs free; None: no end is known.
    next_at: float | None
    next_gpus: int  # GPUs of that node that are not free now


def free_gpus(context: Context, partition: str = "") -> tuple[FreeGpus, ...]:
    """Return a row for each partition and type of GPU. ``partition``: only this one.

    Raises ``SchedulerError``, and ``BadInput`` for a partition without GPUs.
    """
    client = context.slurm()
    rows = summed(client.gpus(), client.queue(), context.clock.now())
    chosen = tuple(row for row in rows if partition in ("", row.partition))
    if rows and not chosen:
        names = ", ".join(dict.fromkeys(row.partition for row in rows))
        message = f"no partition {partition!r} has GPUs that you may see"
        raise BadInput(message, f"partitions with GPUs: {names}")
    return chosen


def summed(gpus: Iterable[GpuRow], queue: Iterable[QueueRow], now: float) -> tuple[FreeGpus, ...]:
    """Return the rows, sorted by partition and type. ``now``: seconds since the epoch."""
    rows: dict[tuple[str, str], list[GpuRow]] = {}
    for row in gpus:
        rows.setdefault((row.partition, row.gpu_type), []).append(row)
    ends: dict[str, float] = {}  # the first end of a running job, by node
    for job in queue:
        if job.word == "PENDING" or job.end is None or job.end <= now:
            continue
        for node in expand(job.nodelist):
            ends[node] = min(ends.get(node, job.end), job.end)
    return tuple(_sum(partition, kind, nodes, ends) for (partition, kind), nodes in sorted(rows.items()))


def _sum(partition: str, kind: str, nodes: list[GpuRow], ends: dict[str, float]) -> FreeGpus:
    usable = [node for node in nodes if node.is_open and is_usable(node.state)]
    # A job needs a processor too: jobs without GPUs may hold all processors of a node.
    free = {
        node.node: 0 if node.state.startswith(FULL) else max(0, node.total - node.used) for node in usable
    }
    busy = [node for node in usable if free[node.node] < node.total and node.node in ends]
    following = min(busy, key=lambda node: ends[node.node], default=None)
    return FreeGpus(
        partition,
        kind,
        total=sum(node.total for node in nodes),
        free=sum(free.values()),
        unusable=sum(node.total for node in nodes if node not in usable),
        free_nodes=sum(free[node.node] == node.total for node in usable),
        most_on_node=max(free.values(), default=0),
        next_at=ends[following.node] if following else None,
        next_gpus=following.total - free[following.node] if following else 0,
    )
