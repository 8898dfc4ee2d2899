"""Whether large packets get to a machine on which nothing of ours runs: a closed UDP port refuses them.

The refusal is a small packet of the kernel's, whatever the size of what it refuses; no program sees either.
"""

from __future__ import annotations

import socket

_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14, 28), socket.AF_INET6: (socket.IPPROTO_IPV6, 24, 48)}
"""The level and option that tell the MTU of a connected socket's way, and the bytes of all headers."""
ENOUGH = 5
"""How often a large one must go unanswered where a small one was refused: kernels refuse few a second."""


class Sizes:
    """One machine: ``send`` is called again and again, with time between for what comes back."""

    def __init__(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sent = 0
        self._got = {True: False, False: False}
        self._sockets: dict[bool, socket.socket] = {}
        self._large = 0
        try:
            for large in (True, False):
                self._sockets[large] = socket.socket(family, socket.SOCK_DGRAM)
                self._sockets[large].setblocking(False)
                self._sockets[large].connect((address, port))
            self._large = max(_payload(family, self._sockets[True]), 0)
        except OSError:  # no way there: the calls say so
            self.close()

    @property
    def lost(self) -> bool:
        """Small ones are refused and large ones never: these do not arrive."""
        self._look()
        return self._got[False] and not self._got[True] and self._sent >= ENOUGH

    @property
    def done(self) -> bool:
        """A large one was refused, or none can be sent."""
        self._look()
        return self._got[True] or not self._large

    def send(self) -> None:
        """Send a large one, and a small one until that is refused."""
        if self.done:
            return
        self._sent += 1
        for large, one in self._sockets.items():
            if not self._got[large]:
                try:
                    one.send(bytes(self._large if large else 1))
                except ConnectionRefusedError:
                    self._got[large] = True
                except OSError:  # its own queue is full, or it is larger than this machine may send
                    pass

    def close(self) -> None:
        """Leave the sockets; what is known stays."""
        self._look()
        for one in self._sockets.values():
            one.close()
        self._sockets, self._large = {}, 0

    def _look(self) -> None:
        for large, one in self._sockets.items():
            try:
                one.recv(1)
            except ConnectionRefusedError:
                self._got[large] = True
            except OSError:
                pass


def _payload(family: int, sock: socket.socket) -> int:
    """Bytes that fill one packet of the way's MTU."""
    level, option, headers = _MTU[socket.AddressFamily(family)]
    return sock.getsockopt(level, option) - headers
