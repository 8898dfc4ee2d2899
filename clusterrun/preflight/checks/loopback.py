"""Connect to this node itself. Ranks of one node, and the store of the first rank, use the loopback."""

from __future__ import annotations

import socket

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import text

NAME = "loopback"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "whether it reaches itself could not be tested within 10 s", "")
_ADDRESS = "127.0.0.1"
# The kernel answers at once. A lost first packet is repeated after 1 and 3 seconds.
_CONNECT_SECONDS = 5.0
_REMEDY = "ip link set lo up, if ip address show lo shows no 127.0.0.1; else: iptables -S, nft list ruleset"


def probe(request: RunNeeds) -> object:
    """Return the error of a connection to 127.0.0.1; '' if there is none."""
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        listener.listen()
        try:
            socket.create_connection(listener.getsockname(), _CONNECT_SECONDS).close()
        except OSError as error:
            return {"error": error.strerror or str(error) or type(error).__name__}
    return {"error": ""}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    for node, reading in readings.items():
        error = text(reading, "error")
        if error:
            message = f"it cannot connect to itself at {_ADDRESS}: {error}"
            yield node, Finding(NAME, Grade.FAIL, message, _REMEDY)
