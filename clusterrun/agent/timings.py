"""Every waiting time of the nodes' tower as one value that travels with the invitation; knows no clock."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen


@frozen
class Timings:
    """All in seconds; see ``contract`` for what each one bounds. Other values than these are for tests."""

    heartbeat: float = contract.HEARTBEAT_SECONDS
    lease: float = contract.LEASE_SECONDS
    lost: float = contract.LOST_SECONDS
    kill: float = contract.KILL_SECONDS
    state: float = contract.STATE_SECONDS
    join: float = contract.JOIN_SECONDS
