"""Relay TCP connections over one pair of streams to a port of another machine.

The far end runs as ``python -c`` on a node of the run. It uses Python 3.9 and the standard library alone.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
from collections.abc import Callable

Dial = Callable[[], socket.socket]

# Frame kinds: the relay is ready; a connection was opened; data; end of data; closed; more credit.
HELLO, OPEN, DATA, END, CLOSE, CREDIT = range(1, 7)
HEAD = struct.Struct(">BII")
# Bytes of one connection that may be in transit, so that a slow connection does not delay the others.
WINDOW = 256 * 1024
CHUNK_BYTES, MOST_WAITING, MOST_CHANNELS = 64 * 1024, 1024 * 1024, 256
DIAL_SECONDS = 2.0


class Channel:
    """A connection.

    ``credit`` is the number of bytes that the other end accepts; ``waiting`` is unsent data.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.credit, self.waiting = WINDOW, bytearray()
        self.peer_finished = self.own_finished = self.passed_on = False


class Relay:
    """One end of the relay.

    ``dial`` opens a connection for the other end; None if only this end opens any.
    """

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
        """Relay the connections to ``listener`` to the port of the other end."""
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def send(self, kind: int, number: int, content: bytes = b"") -> None:
        self._leaving += HEAD.pack(kind, number, len(content)) + content

    def turn(self, seconds: float) -> None:
        """Relay the data that is ready. Wait for it for at most ``seconds``."""
        self._watch(self._outgoing, selectors.EVENT_WRITE if self._leaving else 0)
        for number, channel in self._channels.items():
            takes = not channel.own_finished and channel.credit > 0 and len(self._leaving) < MOST_WAITING
            events = (selectors.EVENT_READ if takes else 0) | (
                selectors.EVENT_WRITE if channel.waiting else 0
            )
            self._watch(channel.connection, events, number)
        for key, events in self._selector.select(seconds):
            if key.fileobj == self._incoming:
                self._read_frames()
            elif key.fileobj == self._outgoing:
                try:
                    del self._leaving[: os.write(self._outgoing, self._leaving[:CHUNK_BYTES])]
                except BlockingIOError:
                    pass
                except OSError:
                    self.over = True
            elif key.fileobj is self._listener:
                self._accept()
            elif key.data in self._channels:
                self._serve(key.data, events)

    def close(self) -> None:
        for number in list(self._channels):
            self._drop(number)
        self._selector.close()

    def _watch(self, what: int | socket.socket, events: int, number: int = 0) -> None:
        registered = self._selector.get_map().get(what)
        if not events:
            if registered:
                self._selector.unregister(what)
        elif not registered:
            self._selector.register(what, events, number)
        elif registered.events != events:
            self._selector.modify(what, events, number)

    def _read_frames(self) -> None:
        try:
            data = os.read(self._incoming, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.over = self.over or not data
        self._arrived += data
        while len(self._arrived) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self._arrived)
            if size > CHUNK_BYTES:
                self.over = True  # the other end is not a relay
                return
            if len(self._arrived) < HEAD.size + size:
                return
            content = bytes(self._arrived[HEAD.size : HEAD.size + size])
            del self._arrived[: HEAD.size + size]
            self._on_frame(kind, number, content)

    def _on_frame(self, kind: int, number: int, content: bytes) -> None:
        """Handle a frame of the other end."""
        channel = self._channels.get(number)
        if kind == HELLO:
            self.greeting = content.decode("utf-8", "replace")
        elif kind == OPEN and self._dial and channel is None:
            self._open(number)
        elif channel is None:
            return  # this end has closed it already
        elif kind == DATA:
            channel.waiting += content
        elif kind == CREDIT:
            channel.credit += struct.unpack(">I", content)[0]
        elif kind == END:
            channel.peer_finished = True
            self._flush(number)
        elif kind == CLOSE:
            self.refused = content.decode("utf-8", "replace") or self.refused
            self._drop(number)

    def _open(self, number: int) -> None:
        """Open a connection for the other end, or report the refusal to it."""
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
        """Accept a connection of the listener, and ask the other end to open its part."""
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

    def _serve(self, number: int, events: int) -> None:
        """Read from and write to a connection that is ready."""
        channel = self._channels[number]
        try:
            if events & selectors.EVENT_READ:
                data = channel.connection.recv(min(CHUNK_BYTES, channel.credit))
                channel.credit -= len(data)
                channel.own_finished = not data
                self.send(DATA if data else END, number, data)
            if events & selectors.EVENT_WRITE:
                sent = channel.connection.send(channel.waiting)
                del channel.waiting[:sent]
                self.send(CREDIT, number, struct.pack(">I", sent))
        except BlockingIOError:
            return
        except OSError:
            self.send(CLOSE, number)
            self._drop(number)
            return
        self._flush(number)

    def _flush(self, number: int) -> None:
        """Pass on the end of the other side's data, once all of the data is sent."""
        channel = self._channels[number]
        if not channel.peer_finished or channel.waiting:
            return
        if channel.own_finished:
            self._drop(number)
            return
        if channel.passed_on:
            return
        channel.passed_on = True
        try:
            channel.connection.shutdown(socket.SHUT_WR)
        except OSError:
            self.send(CLOSE, number)
            self._drop(number)

    def _drop(self, number: int) -> None:
        channel = self._channels.pop(number)
        self._watch(channel.connection, 0)
        channel.connection.close()


def dial(port: int) -> socket.socket:
    """Return a connection to ``port`` of this machine, on any of its addresses. Raise ``OSError``."""
    why = ""
    for host in ("127.0.0.1", "::1", socket.gethostname()):
        try:
            return socket.create_connection((host, port), DIAL_SECONDS)
        except OSError as error:
            why = why or error.strerror or str(error)
    raise OSError(why)


def main(port: int) -> None:
    """Run the far end between standard input and output."""
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
