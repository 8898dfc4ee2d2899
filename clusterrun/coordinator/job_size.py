"""Adapt the orders to a job that got some number of nodes between the least and the most; pure.

Ranks that resume with another world size train with another global batch, or fail to load their shards.
Without ``elastic`` all later jobs of the run use the first job's number of nodes.
"""

from __future__ import annotations

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.record import RunState

_COUNTS = ("--nodes", "--ntasks")


def orders_for(orders: Orders, allocated: int, earlier: RunState | None) -> Orders:
    """Return ``orders`` for a job of ``allocated`` nodes; ``earlier`` is the state of earlier coordinators.

    Later jobs request as many nodes as this one if the world size must not change. Raise
    ``ClusterrunError`` if this job would have to change it.
    """
    if not orders.min_nodes or not orders.launch:
        return orders
    attempts = earlier.attempts if earlier else ()
    sizes = [len(attempt.nodes) for attempt in attempts if attempt.ranks_at is not None]
    began = sizes[0] if sizes and not orders.elastic else 0
    train = began or allocated - orders.spares
    if train < 1 or train > allocated:
        sizes_message = f"this job has {allocated} nodes, and the ranks of the run began on {train}"
        raise ClusterrunError(
            f"{sizes_message}: they are not started",
            "submit with --elastic if the script can continue with another number of ranks",
        )
    launch = tuple(_counted(word, allocated) for word in orders.launch)
    survival, preflight = orders.survival, orders.preflight
    if not orders.elastic:
        survival = replace(survival, resubmit=_asking(survival.resubmit, train + orders.spares))
    if began:
        preflight = replace(preflight, resubmit=_asking(preflight.resubmit, train + orders.spares))
    orders = replace(orders, launch=launch, survival=survival, preflight=preflight)
    return replace(orders, nodes=train, spares=allocated - train)


def _counted(word: str, allocated: int) -> str:
    key, equals, _ = word.partition("=")
    return f"{key}={allocated}" if equals and key in _COUNTS else word


def _asking(argv: tuple[str, ...], nodes: int) -> tuple[str, ...]:
    """Return ``argv`` (sbatch, options, script) for exactly ``nodes`` nodes. Slurm obeys the last option."""
    return (*argv[:-1], f"--nodes={nodes}", argv[-1]) if argv else argv
