"""What an agent is handed on its standard input: where the coordinator listens and the secret to prove."""

from __future__ import annotations

import json

from clusterrun.agent.timings import Timings
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Interpreter


class NotInvited(ClusterrunError):
    """What stood on the standard input is no invitation."""


@frozen
class Invitation:
    """One JSON line. It travels by pipe only: no argument, variable, file or log ever holds the secret.

    ``secret`` is in hexadecimal; ``epoch`` is the attempt with which this coordinator began;
    ``agents`` is how many are invited, ``python`` the ranks' interpreter.
    """

    secret: str
    run_id: str
    epoch: int
    addresses: tuple[str, ...]
    port: int
    agents: int
    timings: Timings = Timings()
    python: Interpreter = Interpreter()

    def __post_init__(self) -> None:
        if not self.addresses or not 0 < self.port < 65536 or len(bytes.fromhex(self.secret)) < 32:
            raise ValueError("an invitation needs an address, a port and a secret of 32 bytes")


def written(invitation: Invitation) -> bytes:
    """The line."""
    return json.dumps(encode(invitation)).encode() + b"\n"


def read_invitation(line: bytes) -> Invitation:
    """The invitation in a line. Raises ``NotInvited``, which does not repeat what was there."""
    try:
        return decode(Invitation, json.loads(line))
    except (ValueError, BadDocument) as error:
        raise NotInvited(
            "no invitation stood on the standard input of this agent",
            "agents are started by the coordinator; srun must pass its standard input on to every task",
        ) from error
