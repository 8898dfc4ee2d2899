"""Forward a port of a run's node through a session over SSH. The port may listen on its own node only."""

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

# Seconds for the start of a relay. Slurm alone may take a minute to start its step.
START_SECONDS = 120.0
END_SECONDS = 10.0
TURN_SECONDS = 15.0


@frozen
class RemotePort:
    """A port of a run's node."""

    run_id: str
    node: str
    port: int
    local: int  # the port for it on this machine

    def __str__(self) -> str:
        return f"port {self.port} of {self.node}"


def forward_port(
    connection: SharedConnection, command: str, remote_port: RemotePort, tell: Callable[[str], None]
) -> None:
    """Forward the port until Ctrl-C. ``command`` starts its relay on the cluster."""
    address = f"127.0.0.1:{remote_port.local}"
    try:
        listener = socket.create_server(("127.0.0.1", remote_port.local))
    except OSError as error:
        message = f"{address} could not be opened: {error.strerror}"
        raise NotConnected(message, "--local PORT takes another one") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with listener:
        while True:
            with connection.log() as log:
                code = _session(connection.session(command, log, False), listener, remote_port, tell)
                if code is None:
                    return
                if connection.again(code, log, began):
                    continue
                why = "its node, its run or its attempt is gone, or srun could not reach it"
                message = f"what carried {remote_port} here has ended (exit code {code}): {why}"
                status = f"clusterrun --host {connection.name} status {remote_port.run_id}"
                raise ClusterrunError(message, f"{status}; then type this again")


def _session(
    argv: tuple[str, ...], listener: socket.socket, remote_port: RemotePort, tell: Callable[[str], None]
) -> int | None:
    """Run the session and return its exit code; None after Ctrl-C."""
    process = system.Piped(argv)
    relay = Relay(process.incoming, process.outgoing)
    interrupted = False
    try:
        end = time.monotonic() + START_SECONDS
        while relay.greeting is None and not relay.over and time.monotonic() < end:
            relay.turn(1.0)
        if relay.greeting is not None:
            address = f"127.0.0.1:{remote_port.local}"
            print(address, flush=True)
            limits = "which listens for its own machine alone; Ctrl-C ends it"
            tell(f"http://{address} is {remote_port}, {limits}")
            if relay.greeting:
                tell(f"nothing listens there yet ({relay.greeting}): every connection tries anew")
            relay.listen(listener)
            refusal = ""
            while not relay.over:
                relay.turn(TURN_SECONDS)
                if relay.refused != refusal:
                    refusal = relay.refused
                    tell(f"could not connect to {remote_port}: {refusal}")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        relay.close()
        code = process.end(END_SECONDS)
    return None if interrupted else code
