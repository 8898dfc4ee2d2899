"""Carries TCP connections over one pair of streams, to a port of another machine.

Its far end runs as ``python -c`` on a run's node: standard library, Python 3.9, no module beside it.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Dial = Callable[[], socket.socket]

HELLO, OPEN, DATA, END, CLOSE, CREDIT = range(1, 7)
"""Frame kinds: relay ready; connection opened, data, end of data, closed, more credit."""
HEAD = struct.Struct(">BII")
WINDOW = 256 * 1024
"""Bytes that one connection may have on the way, so that a slow one does not hold up the others."""
CHUNK_BYTES, MOST_WAITING, MOST_CHANNELS = 64 * 1024, 1024 * 1024, 256
DIAL_SECONDS = 2.0


class Channel:
    """One connection; ``credit``: how much the other end still takes, ``waiting``: what this one has not."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.credit, self.waiting = WINDOW, bytearray()
        self.peer_finished = self.own_finished = self.passed_on = False


class Relay:
    """One end: ``dial`` opens what the other end asks for (None: this end alone opens)."""

    def __init__(self, incoming: int, outgoing: int, dial: Dial | None = None) -> None:
        self.over = False
        self.greeting: str | None = None
        self.refused = ""
        self._incoming, self._outgoing, self._dial = incoming, outgoing, dial
        self._arrived, self._leaving = bytearray(), bytearray()
        self._channels: dict[int, Channel] = {}
        self._count = 0
        for handle in (incoming, outgoing):
            os.set_blocking(handle, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(incoming, selectors.EVENT_READ)
        self._listener: socket.socket | None = None

    def listen(self, listener: socket.socket) -> None:
        """Whoever connects to ``listener`` is connected to the other end's port."""
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def send(self, kind: int, number: int, content: bytes = b"") -> None:
        self._leaving += HEAD.pack(kind, number, len(content)) + content

    def turn(self, seconds: float) -> None:
        """Carry what is there, after at most ``seconds`` without anything."""
        self._watch(self._outgoing, selectors.EVENT_WRITE if self._leaving else 0)
        for number, one in self._channels.items():
            takes = not one.own_finished and one.credit > 0 and len(self._leaving) < MOST_WAITING
            events = (selectors.EVENT_READ if takes else 0) | (selectors.EVENT_WRITE if one.waiting else 0)
            self._watch(one.connection, events, number)
        for key, events in self._selector.select(seconds):
            if key.fileobj == self._incoming:
                self._read_frames()
            elif key.fileobj == self._outgoing:
                self._write_frames()
            elif key.fileobj is self._listener:
                self._accept()
            elif key.data in self._channels:
                self._serve(key.data, events)

    def close(self) -> None:
        for number in list(self._channels):
            self._drop(number)
        self._selector.close()

    def _watch(self, what: int | socket.socket, events: int, number: int = 0) -> None:
        known = self._selector.get_map().get(what)
        if not events:
            if known:
                self._selector.unregister(what)
        elif not known:
            self._selector.register(what, events, number)
        elif known.events != events:
            self._selector.modify(what, events, number)

    def _read_frames(self) -> None:
        try:
            found = os.read(self._incoming, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        self.over = self.over or not found
        self._arrived += found
        while len(self._arrived) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self._arrived)
            if size > CHUNK_BYTES:
                self.over = True  # no relay speaks there
                return
            if len(self._arrived) < HEAD.size + size:
                return
            content = bytes(self._arrived[HEAD.size : HEAD.size + size])
            del self._arrived[: HEAD.size + size]
            self._on_frame(kind, number, content)

    def _on_frame(self, kind: int, number: int, content: bytes) -> None:
        one = self._channels.get(number)
        if kind == HELLO:
            self.greeting = content.decode("utf-8", "replace")
        elif kind == OPEN and self._dial and one is None:
            self._open(number)
        elif one is None:
            return  # it is gone here already
        elif kind == DATA:
            one.waiting += content
        elif kind == CREDIT:
            one.credit += struct.unpack(">I", content)[0]
        elif kind == END:
            one.peer_finished = True
            self._flush(number)
        elif kind == CLOSE:
            self.refused = content.decode("utf-8", "replace") or self.refused
            self._drop(number)

    def _open(self, number: int) -> None:
        assert self._dial
        try:
            if len(self._channels) >= MOST_CHANNELS:
                raise OSError(f"more than {MOST_CHANNELS} connections at once")
            connection = self._dial()
        except OSError as error:
            self.send(CLOSE, number, str(error).encode()[:CHUNK_BYTES])
            return
        connection.setblocking(False)
        self._channels[number] = Channel(connection)

    def _accept(self) -> None:
        assert self._listener
        try:
            connection = self._listener.accept()[0]
        except OSError:
            return
        if len(self._channels) >= MOST_CHANNELS:
            connection.close()
            return
        connection.setblocking(False)
        self._count += 1
        self._channels[self._count] = Channel(connection)
        self.send(OPEN, self._count)

    def _write_frames(self) -> None:
        try:
            del self._leaving[: os.write(self._outgoing, self._leaving[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self.over = True

    def _serve(self, number: int, events: int) -> None:
        one = self._channels[number]
        try:
            if events & selectors.EVENT_READ:
                found = one.connection.recv(min(CHUNK_BYTES, one.credit))
                one.credit -= len(found)
                one.own_finished = not found
                self.send(DATA if found else END, number, found)
            if events & selectors.EVENT_WRITE:
                sent = one.connection.send(one.waiting)
                del one.waiting[:sent]
                self.send(CREDIT, number, struct.pack(">I", sent))
        except BlockingIOError:
            return
        except OSError:
            self.send(CLOSE, number)
            self._drop(number)
            return
        self._flush(number)

    def _flush(self, number: int) -> None:
        """Pass the end of what the other side says on, once all of it is out."""
        one = self._channels[number]
        if not one.peer_finished or one.waiting:
            return
        if one.own_finished:
            self._drop(number)
            return
        if one.passed_on:
            return
        one.passed_on = True
        try:
            one.connection.shutdown(socket.SHUT_WR)
        except OSError:
            self.send(CLOSE, number)
            self._drop(number)

    def _drop(self, number: int) -> None:
        one = self._channels.pop(number)
        self._watch(one.connection, 0)
        one.connection.close()


def dial(port: int) -> socket.socket:
    """A connection to ``port`` of this machine, on whichever of its addresses. Raises ``OSError``."""
    why = ""
    for host in ("127.0.0.1", "::1", socket.gethostname()):
        try:
            return socket.create_connection((host, port), DIAL_SECONDS)
        except OSError as error:
            why = why or error.strerror or str(error)
    raise OSError(why)


def main(port: int) -> None:
    """Be the far end, between standard input and output."""
    relay = Relay(0, 1, lambda: dial(port))
    try:
        dial(port).close()
        relay.send(HELLO, 0)
    except OSError as error:
        relay.send(HELLO, 0, str(error).encode())
    while not relay.over:
        relay.turn(60.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
