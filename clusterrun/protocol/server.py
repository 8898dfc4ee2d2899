"""Serve the control port of the coordinator, with limits on number and duration of connections.

Unauthenticated peers are expected. Each gets 5 s in all, 512 bytes, one of few slots per source address, and
no line in any log. A new connection evicts the oldest of the same address, silent ones first. Another process
on an agent's host therefore cannot keep the agent out.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable

from clusterrun.protocol.bootstrap import Bootstrap
from clusterrun.protocol.codec import Encoder, WireError
from clusterrun.protocol.connection import Connection, tuned
from clusterrun.protocol.handshake import ServerEnd
from clusterrun.protocol.messages import Hello, ToAgent, ToCoordinator
from clusterrun.runtime.event_loop import EventLoop, steady

# Seconds in which a peer must authenticate.
_PROOF_SECONDS = 5.0
# Connections that are not authenticated yet: in all, and per source address.
_MOST_UNPROVEN = 4096
_MOST_UNPROVEN_PER_ADDRESS = 8
_ACCEPTS_PER_WAKE = 64
# Seconds without accepting, if descriptors are exhausted or all agents have joined.
_PAUSE = 0.2
_LOOPBACK = "127.0.0.1"


class _Guest:
    """One connection and the state of its authentication. ``name``: 0 until the agent is authenticated."""

    def __init__(self, link: Connection, end: ServerEnd, address: str) -> None:
        self.link, self.end, self.address = link, end, address
        self.until = steady() + _PROOF_SECONDS
        self.greeted = False
        self.name = 0


class Server:
    """Accepts, checks and serves the connections of agents that have ``bootstrap``.

    ``joined(link, hello)``, ``heard(link, message)`` and ``left(link, why)`` are called in this order for
    agents that proved themselves. ``refused`` counts the others.
    """

    def __init__(self, loop: EventLoop, listener: socket.socket, bootstrap: Bootstrap) -> None:
        self.joined: Callable[[int, Hello], None]
        self.heard: Callable[[int, ToCoordinator], None]
        self.left: Callable[[int, str], None]
        self.refused = 0
        self.last_refusal = ""
        self._loop, self._listener = loop, listener
        self._bootstrap, self._secret = bootstrap, bytes.fromhex(bootstrap.secret)
        self._encoder = Encoder()
        self._unproven: dict[int, _Guest] = {}
        self._per_address: dict[str, dict[int, _Guest]] = {}
        self._agents: dict[int, _Guest] = {}
        self._names = 0
        listener.setblocking(False)
        loop.watch(listener.fileno(), self._accept)
        loop.every(0.5, self._expire)

    def send(self, name: int, message: ToAgent) -> None:
        """Send to an agent, unless it has left. Drop an agent that does not read."""
        guest = self._agents.get(name)
        if guest is None:
            return
        try:
            data = guest.end.seal(self._encoder.body(message))
        except WireError as error:
            self._leave(guest, error.seen)
            return
        if not guest.link.send(data):
            self._leave(guest, "it does not read its messages")

    def drop(self, name: int) -> None:
        """Close an agent's connection, without a call of ``left``."""
        guest = self._agents.pop(name, None)
        if guest:
            guest.link.close()

    def close(self) -> None:
        for guest in [*self._agents.values(), *self._unproven.values()]:
            guest.link.close()
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self, mask: int) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause()  # else the loop would wake at once, again and again
                return
            self._admit(connection, address[0])
        if len(self._agents) >= self._bootstrap.agents:
            self._pause()  # all agents have joined, so further connections may wait

    def _pause(self) -> None:
        self._loop.forget(self._listener.fileno())
        self._loop.after(_PAUSE, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _admit(self, connection: socket.socket, address: str) -> None:
        guests, most = self._per_address.get(address, {}), _MOST_UNPROVEN_PER_ADDRESS
        if address in (*self._bootstrap.addresses, _LOOPBACK):  # many agents of this machine come at once
            most = min(self._bootstrap.agents + 8, _MOST_UNPROVEN)
        if len(guests) >= most:
            silent = (guest for guest in guests.values() if not guest.greeted)
            self._leave(next(silent, next(iter(guests.values()))), "too many at once from there")
        if len(self._unproven) >= _MOST_UNPROVEN:
            self._count(f"too many at once, {address} among them")
            connection.close()
            return
        tuned(connection)
        link = Connection(self._loop, connection)
        end = ServerEnd(self._secret, self._bootstrap.run_id, self._bootstrap.epoch, os.urandom(32))
        guest = _Guest(link, end, address)
        self._per_address.setdefault(address, {})[id(guest)] = guest
        self._unproven[id(guest)] = guest
        link.open(lambda data: self._received(guest, data), lambda why: self._leave(guest, why))

    def _received(self, guest: _Guest, data: bytes) -> None:
        try:
            messages = guest.end.receive(data, time.time())
        except WireError as error:
            guest.link.send(guest.end.take_output())
            self._leave(guest, error.seen)
            return
        if not guest.name:
            answer = guest.end.take_output()
            guest.greeted = guest.greeted or bool(answer)
            guest.link.send(answer)
            if guest.end.hello:
                self._forget_unproven(guest)
                self._names += 1
                guest.name = self._names
                self._agents[guest.name] = guest
                self.joined(guest.name, guest.end.hello)
        for message in messages:
            if guest.name in self._agents:
                self.heard(guest.name, message)

    def _forget_unproven(self, guest: _Guest) -> None:
        if self._unproven.pop(id(guest), None):
            guests = self._per_address[guest.address]
            del guests[id(guest)]
            if not guests:
                del self._per_address[guest.address]

    def _leave(self, guest: _Guest, why: str) -> None:
        guest.link.close()
        if guest.name:
            if self._agents.pop(guest.name, None):
                self.left(guest.name, why)
        else:
            self._forget_unproven(guest)
            self._count(f"{guest.address}: {why}")

    def _expire(self) -> None:
        now = steady()
        # Guests are in order of arrival with equal limits, so the first one in time ends the loop.
        for guest in list(self._unproven.values()):
            if guest.until > now:
                return
            self._leave(guest, "it did not prove itself in time")

    def _count(self, why: str) -> None:
        self.refused += 1
        self.last_refusal = why


def listening(address: str, backlog: int) -> socket.socket:
    """Return a socket that listens on a free port of ``address`` ('': all addresses). Raise ``OSError``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(min(max(backlog, 128), 65535))
    return listener
