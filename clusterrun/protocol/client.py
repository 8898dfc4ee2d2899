"""Connect an agent to its coordinator: try every address until the limit."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.protocol.bootstrap import Bootstrap
from clusterrun.protocol.codec import WireError
from clusterrun.protocol.connection import tuned
from clusterrun.protocol.handshake import ClientEnd, Refused, Stranger
from clusterrun.protocol.messages import Hello, ToAgent
from clusterrun.runtime.overload import PatientLimit

_CONNECT_SECONDS = 4.0
_PROOF_SECONDS = 8.0
_LONGEST_PAUSE = 2.0
# The rate at which a coordinator accepts agents. The first attempts are spread over that time.
_AGENTS_PER_SECOND = 2500


class CannotJoin(ClusterrunError):
    """The coordinator was not reached at any of ``places``, or refused."""

    places: tuple[tuple[str, int], ...] = ()


class OutOfReach(CannotJoin):
    """No coordinator answered before the limit."""


@frozen
class Joined:
    """A proven connection."""

    connection: socket.socket
    end: ClientEnd
    early: tuple[ToAgent, ...]  # messages that came together with the welcome


def join(bootstrap: Bootstrap, hello: Callable[[str], Hello]) -> Joined:
    """Return a connection on which both sides have proved themselves. Raise ``CannotJoin`` if there is none.

    ``hello`` makes the hello from this side's address of the connection. A slow, full or unreachable
    coordinator is retried until ``timeouts.join``, and longer while this machine is overloaded. A refusal
    with a proof, or strangers at all addresses, end the search at once.
    """
    limit = PatientLimit(bootstrap.timeouts.join)
    time.sleep(_random_fraction() * min(bootstrap.agents / _AGENTS_PER_SECOND, 5.0))
    pause = 0.05
    while True:
        failures: list[Exception] = []
        for address in bootstrap.addresses:
            try:
                return _try(address, bootstrap, hello)
            except Refused as error:
                raise _failed(bootstrap, f"it refused: {error.seen}") from error
            except (OSError, WireError) as error:
                failures.append(error)
        if all(isinstance(failure, Stranger) for failure in failures):
            raise _failed(bootstrap, str(failures[-1]))
        if limit.expires_within(pause):
            raise _failed(bootstrap, str(failures[-1]), OutOfReach)
        time.sleep(pause * (0.5 + _random_fraction()))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _try(address: str, bootstrap: Bootstrap, hello: Callable[[str], Hello]) -> Joined:
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect((address, bootstrap.port))
        tuned(connection)
        connection.settimeout(_PROOF_SECONDS)
        own_address = connection.getsockname()[0]
        secret = bytes.fromhex(bootstrap.secret)
        end = ClientEnd(secret, bootstrap.run_id, bootstrap.epoch, hello(own_address), os.urandom(32))
        early: list[ToAgent] = []
        while not end.proven:
            connection.sendall(end.take_output())
            data = connection.recv(4096)
            if not data:
                raise ConnectionResetError("it closed the connection before the proof")
            early += end.receive(data)
    except BaseException:
        connection.close()
        raise
    return Joined(connection, end, tuple(early))


def _failed(bootstrap: Bootstrap, why: str, kind: type[CannotJoin] = CannotJoin) -> CannotJoin:
    where = " or ".join(f"{address} port {bootstrap.port}" for address in bootstrap.addresses)
    error = kind(
        f"{os.uname().nodename} could not join the coordinator at {where}: {why}",
        "a firewall between the nodes, or a name that resolves to another address, are the usual causes",
    )
    error.places = tuple((address, bootstrap.port) for address in bootstrap.addresses)
    return error


def _random_fraction() -> float:
    return int.from_bytes(os.urandom(4), "big") / 2**32
