"""Listen on the ports that other nodes dial in the control round. Strangers learn nothing."""

from __future__ import annotations

import contextlib
import errno
import hmac
import random
import socket
import time
from collections.abc import Callable
from functools import partial

from clusterrun import proc
from clusterrun.preflight.node.tcp_counts import sent_and_resent
from clusterrun.preflight.tasks import LinkTraffic
from clusterrun.runtime.network import bound

Watch = Callable[[socket.socket, int, Callable[[int], None]], None]

READ, WRITE = 1, 2
PORTS = 8
# Bytes that go there and back: more than ten packets of the usual size, or two jumbo packets.
LARGE = 16384
WELCOME = b"ok\n"
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL = (32768, 60999)
_LONGEST_GREETING = 100
_STAYS = " stays"
_MOST_GUESTS = 1024
_VISIT_SECONDS = 15.0


def greeting(nonce: str, node: int, stays: bool = False) -> bytes:
    """Return the first line and the datagram of a dialler. ``stays`` announces further messages."""
    ending = _STAYS if stays else ""
    return f"{nonce} {node}{ending}\n".encode()


class Listener:
    """Serve diallers.

    ``watch(socket, events, callback)`` requests a call when a socket is ready. Events 0 end the request.
    """

    def __init__(self, nonce: str, watch: Watch, port: int = 0) -> None:
        self.heard: set[int] = set()
        self._nonce, self._watch = nonce, watch
        self._guests: dict[socket.socket, _Guest] = {}
        self._listeners = _spread(PORTS)
        self._datagrams = _bound(socket.SOCK_DGRAM, 0)
        self.rendezvous: socket.socket | None = None  # torchrun's port, if it is free
        with contextlib.suppress(OSError):
            self.rendezvous = _bound(socket.SOCK_STREAM, port) if port else None
        for listener in filter(None, (*self._listeners, self.rendezvous)):
            listener.listen(4096)
            watch(listener, READ, partial(self._accept, listener))
        watch(self._datagrams, READ, lambda _: self._hear())

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the TCP ports, in equal steps within the kernel's range of ephemeral ports."""
        return tuple(listener.getsockname()[1] for listener in self._listeners)

    @property
    def udp_port(self) -> int:
        return int(self._datagrams.getsockname()[1])

    def release_port(self) -> None:
        """Leave torchrun's port to programs, which may start on a node that the job does not have alone."""
        if self.rendezvous is not None:
            self._watch(self.rendezvous, 0, lambda _: None)
            self.rendezvous.close()
            self.rendezvous = None

    def close(self) -> None:
        self.release_port()
        for sock in (*self._listeners, self._datagrams, *self._guests):
            self._watch(sock, 0, lambda _: None)
            sock.close()
        self._guests.clear()

    def exchanged(self) -> list[LinkTraffic]:
        staying = [(guest, visit.node) for guest, visit in self._guests.items() if visit.stays]
        return [LinkTraffic(node, *sent_and_resent(guest)) for guest, node in staying]

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            node, _ = _greeted(self._datagrams.recv(_LONGEST_GREETING), self._nonce)
            self.heard |= {node} - {-1}

    def _accept(self, listener: socket.socket, _: int) -> None:
        try:
            guest, _ = listener.accept()
        except OSError:
            return
        now = time.monotonic()
        for late in [sock for sock, visit in self._guests.items() if visit.until < now]:
            self._part(late)
        if len(self._guests) >= _MOST_GUESTS:
            guest.close()
            return
        guest.setblocking(False)
        self._guests[guest] = _Guest(now + _VISIT_SECONDS)
        self._watch(guest, READ, lambda events: self._serve(guest, events))

    def _serve(self, guest: socket.socket, events: int) -> None:
        visit = self._guests.get(guest)
        try:
            is_open = visit is not None and visit.advance(guest, events, self._nonce)
        except OSError:
            is_open = False
        if visit is None or not is_open:
            self._part(guest)
            return
        self._watch(guest, READ | WRITE if visit.unsent else READ, lambda events: self._serve(guest, events))

    def _part(self, guest: socket.socket) -> None:
        if self._guests.pop(guest, None) is not None:
            self._watch(guest, 0, lambda _: None)
            guest.close()


class _Guest:
    """The state of one connection: a greeting, a welcome, and then an echo of the data."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.unsent = b""
        self.node, self.stays = -1, False
        self._first = b""
        self._returned = 0

    def advance(self, guest: socket.socket, events: int, nonce: str) -> bool:
        """Continue the connection. Return False at its end."""
        data = read(guest, LARGE) if events & READ else b""
        if data and not self._take(data, nonce):
            return False
        if self.unsent:
            self.unsent = self.unsent[guest.send(self.unsent) :]
        return self.stays or self._returned <= LARGE

    def _take(self, data: bytes, nonce: str) -> bool:
        if self.node < 0:
            line, sign, data = (self._first + data).partition(b"\n")
            if not sign:
                self._first = line
                return len(line) < _LONGEST_GREETING
            self.node, self.stays = _greeted(line + sign, nonce)
            if self.node < 0:
                return False
            self.unsent = WELCOME
            self.until = float("inf") if self.stays else self.until
        self._returned += len(data)
        self.unsent += data
        return True


def _greeted(data: bytes, nonce: str) -> tuple[int, bool]:
    """Return the number of the node that sent a greeting, -1 for a stranger, and whether it stays."""
    line = data.rstrip(b"\n")
    stays = line.endswith(_STAYS.encode())
    presented, _, node = (line[: -len(_STAYS)] if stays else line).rpartition(b" ")
    is_known = hmac.compare_digest(presented, nonce.encode()) and node.isdigit() and len(node) < 8
    return (int(node), stays) if is_known else (-1, False)


def _spread(count: int) -> list[socket.socket]:
    """Return up to ``count`` sockets in equal steps. Raise ``OSError`` if there is none.

    A blocked range that is as wide as a step has one of them.
    """
    bounds = [int(word) for word in proc.text(_RANGE).split()]
    low, high = bounds if len(bounds) == 2 else _USUAL
    step = max(1, (high - low) // count)
    first = low + random.randrange(step)
    sockets = [_near(first)]
    with contextlib.suppress(OSError):
        sockets.extend(_near(first + index * step) for index in range(1, count))
    return sockets


def _near(port: int) -> socket.socket:
    for free in range(port, port + 50):
        try:
            return _bound(socket.SOCK_STREAM, free)
        except OSError:
            continue
    return _bound(socket.SOCK_STREAM, 0)


def _bound(kind: int, port: int) -> socket.socket:
    sock = bound(port, kind)
    sock.setblocking(False)
    return sock


def read(sock: socket.socket, most: int) -> bytes:
    """Return the received bytes, maybe none. Raise ``OSError`` if the other end closed the connection."""
    try:
        data = sock.recv(most)
    except BlockingIOError:
        return b""
    if not data:
        raise OSError(errno.ECONNRESET, "closed")
    return data


def outgoing(address: str, kind: int) -> socket.socket:
    """Return a socket that never blocks, of the family of ``address``. Raise ``OSError`` on failure."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    sock.setblocking(False)
    return sock
