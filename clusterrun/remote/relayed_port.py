"""A port of a run's node that listens for its own node alone, brought here through a session over SSH."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

from clusterrun import system
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.operations.port_relay import Relay
from clusterrun.remote.connection import NotConnected, SharedConnection

START_SECONDS = 120.0
"""How long a relay may take to be there: Slurm has a minute for its step."""
END_SECONDS = 10.0
TURN_SECONDS = 15.0


@frozen
class PortThere:
    """Which port of which node, of which run, and the port for it here."""

    run_id: str
    node: str
    port: int
    local: int

    def __str__(self) -> str:
        return f"port {self.port} of {self.node}"


def forward_port(
    connection: SharedConnection, command: str, wanted: PortThere, tell: Callable[[str], None]
) -> None:
    """Have the port here until Ctrl-C; ``command`` is what starts its relay there."""
    here = f"127.0.0.1:{wanted.local}"
    try:
        listener = socket.create_server(("127.0.0.1", wanted.local))
    except OSError as error:
        seen = f"{here} could not be opened: {error.strerror}"
        raise NotConnected(seen, "--local PORT takes another one") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with listener:
        while True:
            with connection.log() as log:
                code = _session(connection.session(command, log, False), listener, wanted, tell)
                if code is None:
                    return
                if connection.again(code, log, began):
                    continue
                why = "its node, its run or its attempt is gone, or srun could not reach it"
                seen = f"what carried {wanted} here has ended (exit code {code}): {why}"
                status = f"clusterrun --host {connection.name} status {wanted.run_id}"
                raise ClusterrunError(seen, f"{status}; then type this again")


def _session(
    argv: tuple[str, ...], listener: socket.socket, wanted: PortThere, tell: Callable[[str], None]
) -> int | None:
    """What the session ended with; None after Ctrl-C."""
    process = system.Piped(argv)
    relay = Relay(process.incoming, process.outgoing)
    interrupted = False
    try:
        end = time.monotonic() + START_SECONDS
        while relay.greeting is None and not relay.over and time.monotonic() < end:
            relay.turn(1.0)
        if relay.greeting is not None:
            _tell_open(relay.greeting, wanted, tell)
            relay.listen(listener)
            _carry(relay, wanted, tell)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        relay.close()
        code = process.end(END_SECONDS)
    return None if interrupted else code


def _tell_open(greeting: str, wanted: PortThere, tell: Callable[[str], None]) -> None:
    here = f"127.0.0.1:{wanted.local}"
    print(here, flush=True)
    tell(f"http://{here} is {wanted}, which listens for its own machine alone; Ctrl-C ends it")
    if greeting:
        tell(f"nothing listens there yet ({greeting}): every connection tries anew")


def _carry(relay: Relay, wanted: PortThere, tell: Callable[[str], None]) -> None:
    told = ""
    while not relay.over:
        relay.turn(TURN_SECONDS)
        if relay.refused != told:
            told = relay.refused
            tell(f"a connection to {wanted} was not made: {told}")
