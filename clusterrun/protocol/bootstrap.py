"""What an agent is given on its standard input: where the coordinator listens, the secret, every timeout."""

from __future__ import annotations

import json

from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Interpreter

_MANY = 500


class NoBootstrap(ClusterrunError):
    """What stood on the standard input is no bootstrap."""


@frozen
class Timeouts:
    """Every timeout of the nodes' side, in seconds, as in ``contract``; others are for tests."""

    heartbeat: float = contract.HEARTBEAT_SECONDS
    lease: float = contract.LEASE_SECONDS
    lost: float = contract.LOST_SECONDS
    kill: float = contract.KILL_SECONDS
    state: float = contract.STATE_SECONDS
    join: float = contract.JOIN_SECONDS


def timeouts_for(nodes: int) -> Timeouts:
    """What a run over ``nodes`` nodes uses.

    Where very many start their ranks at once, on a slow file system or on one shared machine, a
    healthy node may be silent for long. The longer lease still ends before Slurm starts a job again
    elsewhere: its credentials alone keep that back for 120 s.
    """
    return Timeouts() if nodes <= _MANY else Timeouts(lease=75.0, lost=60.0, join=2 * contract.JOIN_SECONDS)


@frozen
class Bootstrap:
    """One JSON line. It travels by pipe only: no argument, variable, file or log ever holds the secret.

    ``secret`` is in hexadecimal; ``epoch`` is the attempt with which this coordinator began;
    ``agents`` is how many are invited, ``python`` the ranks' interpreter, ``cwd`` their directory
    ('': as the orders say).
    """

    secret: str
    run_id: str
    epoch: int
    addresses: tuple[str, ...]
    port: int
    agents: int
    timeouts: Timeouts = Timeouts()
    python: Interpreter = Interpreter()
    cwd: str = ""

    def __post_init__(self) -> None:
        if not self.addresses or not 0 < self.port < 65536 or len(bytes.fromhex(self.secret)) < 32:
            raise ValueError("a bootstrap needs an address, a port and a secret of 32 bytes")


def written(bootstrap: Bootstrap) -> bytes:
    return json.dumps(encode(bootstrap)).encode() + b"\n"


def read_bootstrap(line: bytes) -> Bootstrap:
    """The bootstrap in a line. Raises ``NoBootstrap``, which does not repeat what was there."""
    try:
        return decode(Bootstrap, json.loads(line))
    except (ValueError, BadDocument) as error:
        raise NoBootstrap(
            "no bootstrap stood on the standard input of this agent",
            "agents are started by the coordinator; srun must pass its standard input on to every task",
        ) from error
