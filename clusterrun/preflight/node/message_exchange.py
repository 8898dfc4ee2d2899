"""Exchange messages with some nodes continuously, and count retransmissions."""

from __future__ import annotations

import errno
import os
import socket
import time

from clusterrun.model.frozen import replace
from clusterrun.preflight.node.listener import READ, WELCOME, WRITE, Listener, Watch, greeting, outgoing, read
from clusterrun.preflight.node.tcp_counts import sent_and_resent, transmitted_again
from clusterrun.preflight.tasks import ExchangeAnswer, ExchangeTask, LinkTraffic, Target

PAUSE_SECONDS = 0.1
# Several packets of the usual size. The kernel retransmits a single lost packet only after a long time.
MESSAGE_BYTES = 6000
# A message stalls in the network, and not in a process, if it takes this long and the kernel retransmits this
# often.
STALL_SECONDS = 1.0
STALL_RESENT = 3


class MessageExchange:
    """All connections that this node opened. ``watch``: see ``listener.Watch``."""

    def __init__(self, task: ExchangeTask, watch: Watch) -> None:
        hello = greeting(task.nonce, task.node, stays=True)
        self._connections = [_Connection(target, hello, watch) for target in task.targets if target.ports]

    def due_at(self) -> float:
        return min((connection.next_at for connection in self._connections), default=float("inf"))

    def tick(self) -> None:
        now = time.monotonic()
        for connection in self._connections:
            if now >= connection.next_at:
                connection.send(now)

    def exchanged(self) -> list[LinkTraffic]:
        now = time.monotonic()
        return [connection.snapshot(now) for connection in self._connections]

    def end(self) -> None:
        for connection in self._connections:
            connection.close()


class RunningExchange:
    """Execute one ``ExchangeTask``: wait, then report the traffic."""

    def __init__(
        self, task: ExchangeTask, exchange: MessageExchange | None, listener: Listener | None
    ) -> None:
        self._until = time.monotonic() + task.seconds
        self._exchange, self._listener = exchange, listener

    def due_at(self) -> float:
        return self._until

    def tick(self) -> bool:
        return time.monotonic() >= self._until

    def answer(self) -> ExchangeAnswer:
        links = self._exchange.exchanged() if self._exchange is not None else []
        links += self._listener.exchanged() if self._listener is not None else []
        return ExchangeAnswer(tuple(links))


class _Connection:
    """One connection. It sends a message at ``next_at``, after the previous message came back."""

    def __init__(self, target: Target, hello: bytes, watch: Watch) -> None:
        self.next_at = float("inf")
        self._watch = watch
        self._counts = LinkTraffic(target.node, 0, 0)
        self._unsent, self._awaited = hello, len(WELCOME)
        self._began: float | None = None
        self._resent_at_begin = 0
        self._connected = False
        self._socket: socket.socket | None = outgoing(target.address, socket.SOCK_STREAM)
        if self._socket.connect_ex((target.address, target.ports[0])) in (0, errno.EINPROGRESS):
            watch(self._socket, WRITE, lambda _: self._ready())
        else:
            self.close()

    def send(self, now: float) -> None:
        if self._socket is None:
            return
        self.next_at = float("inf")
        self._began, self._resent_at_begin = now, transmitted_again(self._socket)
        self._unsent, self._awaited = bytes(MESSAGE_BYTES), MESSAGE_BYTES
        self._ready()

    def snapshot(self, now: float) -> LinkTraffic:
        if self._socket is None:
            return self._counts
        sent, resent = sent_and_resent(self._socket)
        return replace(self._with_message(now), sent=sent, resent=resent)

    def close(self) -> None:
        """Close the connection and keep its counts."""
        if self._socket is not None:
            self._counts = self.snapshot(time.monotonic())
            self._watch(self._socket, 0, lambda _: None)
            self._socket.close()
            self._socket, self.next_at = None, float("inf")

    def _with_message(self, now: float) -> LinkTraffic:
        if self._began is None or self._socket is None:
            return self._counts
        took = now - self._began
        resent = transmitted_again(self._socket) - self._resent_at_begin
        stalled = took >= STALL_SECONDS and resent >= STALL_RESENT
        longest = max(self._counts.longest, round(took, 3))
        return replace(self._counts, longest=longest, stalls=self._counts.stalls + stalled)

    def _ready(self) -> None:
        sock = self._socket
        if sock is None:
            return
        try:
            code = 0 if self._connected else sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self._connected = True
            if self._unsent:
                self._unsent = self._unsent[sock.send(self._unsent) :]
            received = len(read(sock, MESSAGE_BYTES))
            self._awaited -= received
            if received and self._awaited <= 0:
                now = time.monotonic()
                self._counts = self._with_message(now)
                self._began = None
                self.next_at = now + PAUSE_SECONDS
        except OSError:
            self.close()
        else:
            self._watch(sock, READ | WRITE if self._unsent else READ, lambda _: self._ready())
