"""Connect to this node itself. Ranks of one node, and the store of the first rank, use the loopback."""

from __future__ import annotations

import errno
import socket

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, text

NAME = "loopback"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "whether it reaches itself could not be tested within 10 s", "")
_ADDRESS = "127.0.0.1"
# The kernel answers at once. A lost first packet is repeated after 1 and 3 seconds.
_CONNECT_SECONDS = 5.0
_REMEDY = "ip link set lo up, if ip address show lo shows no 127.0.0.1; else: iptables -S, nft list ruleset"
_NO_PORT = "every local port is in use: ss -s, ss -tan state time-wait; sysctl net.ipv4.ip_local_port_range"


def probe(request: RunNeeds) -> object:
    """Return the error of a connection to 127.0.0.1 ('' if there is none), and whether no port was free."""
    with socket.socket() as listener:
        no_port = errno.EADDRINUSE
        try:
            listener.bind((_ADDRESS, 0))
            listener.listen()
            no_port = errno.EADDRNOTAVAIL
            socket.create_connection(listener.getsockname(), _CONNECT_SECONDS).close()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            return {"error": reason, "no_port": error.errno == no_port}
    return {"error": ""}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    for node, reading in readings.items():
        error = text(reading, "error")
        if error:
            message = f"it cannot connect to itself at {_ADDRESS}: {error}"
            remedy = _NO_PORT if entries(reading).get("no_port") is True else _REMEDY
            yield node, Finding(NAME, Grade.FAIL, message, remedy)
