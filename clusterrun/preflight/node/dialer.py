"""Dial the ports of other nodes, all at the same time and within one limit."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from contextlib import suppress
from itertools import zip_longest

from clusterrun.preflight.node.listener import LARGE, READ, WELCOME, WRITE, Watch, greeting, outgoing, read
from clusterrun.preflight.node.tcp_counts import dropped_again
from clusterrun.preflight.tasks import Dialled, DialTask, Target

_DATAGRAMS_AT = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0)
_MOST_AT_ONCE = 512
# Level and option for the path MTU of a connected socket, and the bytes of all headers.
_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14, 28), socket.AF_INET6: (socket.IPPROTO_IPV6, 24, 48)}
# Large datagrams that must go unanswered while a small one is refused. Kernels refuse only a few per second.
ENOUGH = 5
_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)
# This machine lacks a free local port or memory. Nothing was sent.
_UNSENT = (errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)


class Dialer:
    """Execute one ``DialTask``. ``watch`` is as in ``listener``."""

    def __init__(self, task: DialTask, watch: Watch) -> None:
        self._task, self._watch = task, watch
        self._began = time.monotonic()
        self._dropped_before = dropped_again()
        self._hello = greeting(task.nonce, task.node)
        is_large = not (task.closed or task.hold)
        self._calls = [
            (
                target,
                [
                    _Call(target, port, is_large and not index, task.closed)
                    for index, port in enumerate(target.ports)
                ],
            )
            for target in task.targets
        ]
        in_turn = zip_longest(*(calls for _, calls in self._calls))
        self._waiting = deque(call for calls in in_turn for call in calls if call is not None)
        self._open: dict[socket.socket, _Call] = {}
        self._held: list[socket.socket] = []
        self._sent = 0
        sized = task.targets if task.sizes else ()
        self._sizes = {target.node: Sizes(target.address, target.udp_port) for target in sized}
        self._dial_next()

    @property
    def until(self) -> float:
        return self._began + self._task.limit

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self._open and all(probe.is_done for probe in self._sizes.values())

    def due_at(self) -> float:
        later = _DATAGRAMS_AT[self._sent :]
        return min([self.until, *(self._began + at for at in later[:1])])

    def tick(self) -> None:
        now = time.monotonic()
        while self._sent < len(_DATAGRAMS_AT) and now >= self._began + _DATAGRAMS_AT[self._sent]:
            self._sent += 1
            for target in self._task.targets if not self._sizes else ():
                # The calls report a missing route.
                with suppress(OSError), outgoing(target.address, socket.SOCK_DGRAM) as sock:
                    sock.sendto(self._hello, (target.address, target.udp_port))
            for size in self._sizes.values():
                size.send()
        if now >= self.until:
            for size in self._sizes.values():
                size.close()
            self._waiting.clear()
            for sock in list(self._open):
                self._close(sock)

    def dialled(self) -> tuple[Dialled, ...]:
        silent = sum(call.silent for _, calls in self._calls for call in calls)
        # The kernel sends each silent call again after a second.
        dropped = 0 < silent <= dropped_again() - self._dropped_before
        lost = [node for node, probe in self._sizes.items() if probe.lost]
        for probe in self._sizes.values():
            probe.close()
        for sock in self._held:
            sock.close()
        results = []
        for target, calls in self._calls:
            answered = [call for call in calls if call.welcome]
            unanswered = [call for call in calls if not call.welcome]
            refused = tuple(call.port for call in unanswered if call.code in _REFUSED)
            # A sweep may not dial a port if the others used all places. Its state is unknown.
            tried = [call for call in unanswered if call.began or not call.closed]
            silent_ports = tuple(call.port for call in tried if call.code not in (*_REFUSED, *_UNSENT))
            why = ""
            for call in unanswered:
                if call.code or call.connected:
                    mute = "the connection was accepted, but nothing answered"
                    why = os.strerror(call.code) if call.code else mute
                    break
            results.append(
                Dialled(
                    node=target.node,
                    refused=refused,
                    silent=silent_ports,
                    large=(target.node not in lost) and all(call.returned for call in answered if call.large),
                    slowest=max((call.seconds for call in answered), default=0.0),
                    why=why,
                    dropped=dropped and any(call.silent for call in calls),
                    unsent=tuple(call.port for call in tried if call.code in _UNSENT),
                )
            )
        return tuple(results)

    def _dial_next(self) -> None:
        while self._waiting and len(self._open) < _MOST_AT_ONCE:
            self._dial(self._waiting.popleft())

    def _dial(self, call: _Call) -> None:
        sock = outgoing(call.target.address, socket.SOCK_STREAM)
        call.began = time.monotonic()
        code = sock.connect_ex((call.target.address, call.port))
        if code not in (0, errno.EINPROGRESS):
            call.code = code
            sock.close()
            return
        self._open[sock] = call
        self._watch(sock, WRITE, lambda _: self._ready(sock))

    def _ready(self, sock: socket.socket) -> None:
        call = self._open[sock]
        try:
            has_ended = call.advance(sock, self._hello)
        except OSError as error:
            call.code, has_ended = error.errno or errno.EIO, True
        if has_ended and self._task.hold and call.welcome:
            self._open.pop(sock)
            self._watch(sock, 0, lambda _: None)
            self._held.append(sock)
            self._dial_next()
        elif has_ended:
            self._close(sock)
            self._dial_next()
        else:
            self._watch(sock, READ | WRITE if call.unsent else READ, lambda _: self._ready(sock))

    def _close(self, sock: socket.socket) -> None:
        self._open.pop(sock)
        self._watch(sock, 0, lambda _: None)
        sock.close()


class _Call:
    """The connection to one port of one target.

    ``large`` means that many bytes go there and back. ``closed`` means that a connection is enough.
    """

    def __init__(self, target: Target, port: int, large: bool, closed: bool = False) -> None:
        self.target, self.port, self.large, self.closed = target, port, large, closed
        self.began = 0.0
        self.code = 0
        self.connected = self.welcome = self.returned = False
        self.seconds = 0.0
        self.unsent = b""
        self._got = b""

    @property
    def silent(self) -> bool:
        """Return whether neither an answer nor an error arrived."""
        return self.began > 0 and not (self.connected or self.welcome or self.code)

    def advance(self, sock: socket.socket, hello: bytes) -> bool:
        """Continue the exchange. Return True at its end. Raise ``OSError`` if the connection fails."""
        if not self.connected:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            if self.closed:
                self.welcome = True
                return True
            self.connected, self.unsent = True, hello
        self._got += read(sock, LARGE)
        if not self.welcome and self._got.startswith(WELCOME):
            self.welcome = True
            self.seconds = time.monotonic() - self.began
            self.unsent = bytes(LARGE) if self.large else b""
        self.returned = len(self._got) >= len(WELCOME) + LARGE
        if self.unsent:
            self.unsent = self.unsent[sock.send(self.unsent) :]
        return self.welcome and (self.returned or not self.large)


class Sizes:
    """Test whether large packets reach a machine without a listener. Its closed UDP port refuses them.

    The kernel's refusal is a small packet, even for a large datagram. Call ``send`` repeatedly, with time
    between the calls for the refusals.
    """

    def __init__(self, address: str, port: int) -> None:
        self._sent = 0
        self._got = {True: False, False: False}
        self._sockets: dict[bool, socket.socket] = {}
        # Bytes that fill one packet of the path MTU.
        self._large = 0
        try:
            for large in (True, False):
                self._sockets[large] = outgoing(address, socket.SOCK_DGRAM)
                self._sockets[large].connect((address, port))
            level, option, headers = _MTU[self._sockets[True].family]
            self._large = max(self._sockets[True].getsockopt(level, option) - headers, 0)
        except OSError:  # The calls report a missing route.
            self.close()

    @property
    def lost(self) -> bool:
        """Return whether the target refuses small datagrams only, so that large ones do not arrive."""
        self._look()
        return self._got[False] and not self._got[True] and self._sent >= ENOUGH

    @property
    def is_done(self) -> bool:
        self._look()
        return self._got[True] or not self._large

    def send(self) -> None:
        if self.is_done:
            return
        self._sent += 1
        for large, sock in self._sockets.items():
            if not self._got[large]:
                try:
                    sock.send(bytes(self._large if large else 1))
                except ConnectionRefusedError:
                    self._got[large] = True
                except OSError:  # The queue is full, or the datagram is too large for this machine.
                    pass

    def close(self) -> None:
        self._look()
        for sock in self._sockets.values():
            sock.close()
        self._sockets, self._large = {}, 0

    def _look(self) -> None:
        for large, sock in self._sockets.items():
            try:
                sock.recv(1)
            except ConnectionRefusedError:
                self._got[large] = True
            except OSError:
                pass
