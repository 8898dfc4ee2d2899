"""Every timeout of the nodes' side as one value, which travels with the bootstrap."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen


@frozen
class Timeouts:
    """All in seconds; see ``contract`` for what each one bounds. Other values than these are for tests."""

    heartbeat: float = contract.HEARTBEAT_SECONDS
    lease: float = contract.LEASE_SECONDS
    lost: float = contract.LOST_SECONDS
    kill: float = contract.KILL_SECONDS
    state: float = contract.STATE_SECONDS
    join: float = contract.JOIN_SECONDS


_MANY = 500


def timeouts_for(nodes: int) -> Timeouts:
    """What a run over ``nodes`` nodes uses.

    Where very many start their ranks at once, on a slow file system or on one shared machine, a
    healthy node may be silent for long. The longer lease still ends before Slurm starts a job again
    elsewhere: its credentials alone keep that back for 120 s.
    """
    return Timeouts() if nodes <= _MANY else Timeouts(lease=75.0, lost=60.0, join=2 * contract.JOIN_SECONDS)
