"""One non-blocking connection, with a bounded buffer of unsent data."""

from __future__ import annotations

import socket
from collections.abc import Callable

from clusterrun.runtime.event_loop import READABLE, WRITABLE, EventLoop

_MOST_UNSENT = 4 * 1024 * 1024
_DEAD_PEER_SECONDS = 20
_READ = 64 * 1024


def tuned(connection: socket.socket) -> None:
    """Disable Nagle's algorithm, and let the kernel detect a dead peer."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_SECONDS * 1000)


class Connection:
    """A connected socket. ``received`` is called with bytes, ``ended`` once with the reason of the end."""

    def __init__(self, loop: EventLoop, connection: socket.socket) -> None:
        self._loop, self._connection = loop, connection
        self._unsent = bytearray()
        self._open = False

    def open(self, received: Callable[[bytes], None], ended: Callable[[str], None]) -> None:
        self._received = received
        self._ended = ended
        self._open = True
        self._connection.setblocking(False)
        self._loop.watch(self._connection.fileno(), self._ready)

    def send(self, data: bytes) -> bool:
        """Send now as much as the kernel takes, and the rest later. Return False if the peer is too slow."""
        if not self._open or not data:
            return True
        if not self._unsent:
            data = data[self._send_now(data) :]
            if not data:
                return True
            self._loop.watch(self._connection.fileno(), self._ready, READABLE | WRITABLE)
        self._unsent += data
        return len(self._unsent) <= _MOST_UNSENT

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.forget(self._connection.fileno())
            self._connection.close()

    def drained(self) -> bool:
        return not self._open or not self._unsent

    def _send_now(self, data: bytes | bytearray) -> int:
        try:
            return self._connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the reading side reports the end, once

    def _ready(self, mask: int) -> None:
        if mask & WRITABLE and self._unsent:
            del self._unsent[: self._send_now(self._unsent)]
            if not self._unsent:
                self._loop.watch(self._connection.fileno(), self._ready)
        if mask & ~WRITABLE:
            self._read()

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._ended(error.strerror or str(error))
            return
        if data:
            self._received(data)
        else:
            self._ended("it closed the connection")
