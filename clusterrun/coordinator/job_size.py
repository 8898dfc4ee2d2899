"""The orders of a job that was given some number of nodes between the least and the most; pure.

Ranks that resume with another world size would train with another global batch, or fail to load their
shards: without ``elastic`` the first job's number of nodes holds for all that follow it.
"""

from __future__ import annotations

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.record import RunState

_COUNTS = ("--nodes", "--ntasks")


def orders_for(orders: Orders, given: int, earlier: RunState | None) -> Orders:
    """``orders`` for a job of ``given`` nodes; ``earlier`` is what coordinators before have left.

    Where the world may not change, the jobs that follow are asked for with as many nodes as this one.
    Raises ``ClusterrunError`` if it would have to change.
    """
    if not orders.min_nodes or not orders.launch:
        return orders
    ran = [len(one.nodes) for one in (earlier.attempts if earlier else ()) if one.ranks_at is not None]
    began = ran[0] if ran and not orders.elastic else 0
    train = began or given - orders.spares
    if train < 1 or train > given:
        raise ClusterrunError(
            f"this job has {given} nodes, and the ranks of the run began on {train}: they are not started",
            "submit with --elastic where the script can go on with another number of ranks",
        )
    launch = tuple(_counted(word, given) for word in orders.launch)
    survival, preflight = orders.survival, orders.preflight
    if not orders.elastic:
        survival = replace(survival, resubmit=_asking(survival.resubmit, train + orders.spares))
    if began:
        preflight = replace(preflight, resubmit=_asking(preflight.resubmit, train + orders.spares))
    orders = replace(orders, launch=launch, survival=survival, preflight=preflight)
    return replace(orders, nodes=train, spares=given - train)


def _counted(word: str, given: int) -> str:
    key, equals, _ = word.partition("=")
    return f"{key}={given}" if equals and key in _COUNTS else word


def _asking(argv: tuple[str, ...], nodes: int) -> tuple[str, ...]:
    """``argv`` (sbatch, options, the script) for exactly so many nodes: the last word on it counts."""
    return (*argv[:-1], f"--nodes={nodes}", argv[-1]) if argv else argv
