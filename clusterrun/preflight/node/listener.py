"""The ports of this node that others dial in the control round; a stranger costs and learns nothing."""

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
LARGE = 16384
"""Bytes that go there and back: more than ten packets of the usual size, two of the jumbo one."""
WELCOME = b"ok\n"
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL = (32768, 60999)
_LONGEST_GREETING = 100
_STAYS = " stays"
_MOST_GUESTS = 1024
_VISIT_SECONDS = 15.0


def greeting(nonce: str, node: int, stays: bool = False) -> bytes:
    """What a dialler says first, and what its datagrams hold; who ``stays`` goes on with messages."""
    return f"{nonce} {node}{_STAYS if stays else ''}\n".encode()


class Listener:
    """``watch(socket, events, callback)`` asks to be called when a socket is ready; events 0: no more."""

    def __init__(self, nonce: str, watch: Watch) -> None:
        self.heard: set[int] = set()
        self._nonce, self._watch = nonce, watch
        self._guests: dict[socket.socket, _Guest] = {}
        self._listeners = _spread(PORTS)
        self._datagrams = _bound(socket.SOCK_DGRAM, 0)
        for listener in self._listeners:
            listener.listen(4096)
            watch(listener, READ, partial(self._accept, listener))
        watch(self._datagrams, READ, lambda _: self._hear())

    @property
    def ports(self) -> tuple[int, ...]:
        """The TCP ports, one in each part of the range from which the kernel takes ports."""
        return tuple(listener.getsockname()[1] for listener in self._listeners)

    @property
    def udp_port(self) -> int:
        return int(self._datagrams.getsockname()[1])

    def close(self) -> None:
        for one in (*self._listeners, self._datagrams, *self._guests):
            self._watch(one, 0, lambda _: None)
            one.close()
        self._guests.clear()

    def exchanged(self) -> list[LinkTraffic]:
        staying = [(guest, seen.node) for guest, seen in self._guests.items() if seen.stays]
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
        for late in [one for one, seen in self._guests.items() if seen.until < now]:
            self._part(late)
        if len(self._guests) >= _MOST_GUESTS:
            guest.close()
            return
        guest.setblocking(False)
        self._guests[guest] = _Guest(now + _VISIT_SECONDS)
        self._watch(guest, READ, lambda events: self._serve(guest, events))

    def _serve(self, guest: socket.socket, events: int) -> None:
        seen = self._guests.get(guest)
        try:
            goes_on = seen is not None and seen.advance(guest, events, self._nonce)
        except OSError:
            goes_on = False
        if seen is None or not goes_on:
            self._part(guest)
            return
        self._watch(guest, READ | WRITE if seen.unsent else READ, lambda events: self._serve(guest, events))

    def _part(self, guest: socket.socket) -> None:
        if self._guests.pop(guest, None) is not None:
            self._watch(guest, 0, lambda _: None)
            guest.close()


class _Guest:
    """One connection: a greeting, a welcome, and whatever is sent then goes back."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.unsent = b""
        self.node, self.stays = -1, False
        self._first = b""
        self._returned = 0

    def advance(self, guest: socket.socket, events: int, nonce: str) -> bool:
        """Go on; False when it is to be closed."""
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
    """The number of the node that speaks, -1 for a stranger; and whether it stays."""
    line = data.rstrip(b"\n")
    stays = line.endswith(_STAYS.encode())
    said, _, node = (line[: -len(_STAYS)] if stays else line).rpartition(b" ")
    known = hmac.compare_digest(said, nonce.encode()) and node.isdigit() and len(node) < 8
    return (int(node), stays) if known else (-1, False)


def _spread(count: int) -> list[socket.socket]:
    """One socket in each of ``count`` parts of the range, or on any port; fewer, but one, or ``OSError``."""
    told = [int(word) for word in proc.text(_RANGE).split()]
    low, high = told if len(told) == 2 else _USUAL
    width = max(1, (high - low) // count)
    found = [_in_part(low, width)]
    with contextlib.suppress(OSError):
        found.extend(_in_part(low + part * width, width) for part in range(1, count))
    return found


def _in_part(low: int, width: int) -> socket.socket:
    for _ in range(50):
        try:
            return _bound(socket.SOCK_STREAM, low + random.randrange(width))
        except OSError:
            continue
    return _bound(socket.SOCK_STREAM, 0)


def _bound(kind: int, port: int) -> socket.socket:
    one = bound(port, kind)
    one.setblocking(False)
    return one


def read(sock: socket.socket, most: int) -> bytes:
    """What has come; empty where nothing has. Raises ``OSError`` where the other end has closed."""
    try:
        data = sock.recv(most)
    except BlockingIOError:
        return b""
    if not data:
        raise OSError(errno.ECONNRESET, "closed")
    return data


def outgoing(address: str, kind: int) -> socket.socket:
    """A socket that never blocks, of the family of ``address``. Raises ``OSError``."""
    one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    one.setblocking(False)
    return one
