"""Ports that listen before they are needed, so that a test's store is there at once; knows no test."""

from __future__ import annotations

import socket

_READY = 4


class ListeningPorts:
    """A few listening sockets on every address of this machine; each is given away once."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def fill(self) -> tuple[int, ...]:
        """Open as many as are missing; the numbers of the new ones."""
        new = [_listening() for _ in range(_READY - len(self._sockets))]
        self._sockets.update((number_of(one), one) for one in new)
        return tuple(number_of(one) for one in new)

    def take(self, port: int) -> socket.socket:
        """The socket that listens on ``port``; one that is not among ours is opened now.

        Raises ``OSError`` where that port cannot be had.
        """
        return self._sockets.pop(port, None) or _listening(port)


def number_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def _listening(port: int = 0) -> socket.socket:
    """A socket that listens for both families where the kernel has both."""
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError:
        return _bound(socket.AF_INET, "0.0.0.0", port)


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind((address, port))
        one.listen(socket.SOMAXCONN)
    except OSError:
        one.close()
        raise
    return one
