"""The bootstrap that an agent reads from its standard input: addresses, secret and timeouts."""

from __future__ import annotations

import json

from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Interpreter

_MANY = 500
# Seconds. A coordinator that does not know the lease of an earlier one expects this.
LONGEST_LEASE = 75.0


class NoBootstrap(ClusterrunError):
    """The standard input holds no bootstrap."""


@frozen
class Timeouts:
    """The timeouts of agents, in seconds. The defaults are those of ``contract``. Tests use others."""

    heartbeat: float = contract.HEARTBEAT_SECONDS
    lease: float = contract.LEASE_SECONDS
    lost: float = contract.LOST_SECONDS
    kill: float = contract.KILL_SECONDS
    state: float = contract.STATE_SECONDS
    join: float = contract.JOIN_SECONDS


def timeouts_for(nodes: int, is_overloaded: bool = False) -> Timeouts:
    """Return the timeouts for a run over ``nodes`` nodes. ``is_overloaded``: this machine is, at the start.

    A healthy node may be silent for long if very many nodes start ranks at once, on a slow file system or
    on one shared machine. The longer lease still ends before Slurm starts a job again on other nodes, since
    Slurm waits 120 s for its credentials to expire.
    """
    if nodes > _MANY:
        return Timeouts(lease=LONGEST_LEASE, lost=60.0, join=2 * contract.JOIN_SECONDS)
    return Timeouts(lease=LONGEST_LEASE, lost=60.0) if is_overloaded else Timeouts()


@frozen
class Bootstrap:
    """One JSON line. It travels by pipe only: no argument, variable, file or log ever holds the secret."""

    secret: str  # hexadecimal
    run_id: str
    epoch: int  # the first attempt of this coordinator
    addresses: tuple[str, ...]
    port: int
    agents: int  # number of expected agents
    timeouts: Timeouts = Timeouts()
    python: Interpreter = Interpreter()  # of the ranks
    cwd: str = ""  # directory of the ranks; empty: that of the orders

    def __post_init__(self) -> None:
        if not self.addresses or not 0 < self.port < 65536 or len(bytes.fromhex(self.secret)) < 32:
            raise ValueError("a bootstrap needs an address, a port and a secret of 32 bytes")


def encode_bootstrap(bootstrap: Bootstrap) -> bytes:
    return json.dumps(encode(bootstrap)).encode() + b"\n"


def read_bootstrap(line: bytes) -> Bootstrap:
    """Return the bootstrap in a line. Raise ``NoBootstrap``, without the line's content, if there is none."""
    try:
        return decode(Bootstrap, json.loads(line))
    except (ValueError, BadDocument) as error:
        raise NoBootstrap(
            "found no bootstrap on the standard input of this agent",
            "agents are started by the coordinator; srun must pass its standard input on to every task",
        ) from error
