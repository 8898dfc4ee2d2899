"""Connections over one pair of streams: bytes arrive whole, ends are passed on, a slow one holds up none."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.operations import port_relay
from clusterrun.operations.port_relay import WINDOW, Relay

LIMIT = 60.0
BIG = os.urandom(1024) * (4 * WINDOW // 1024)


class Both:
    """A far end as it runs on a node, for the port of ``server``, and a near end that listens here."""

    def __init__(self, server: int) -> None:
        text = Path(port_relay.__file__).read_text()
        self.far = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", text, str(server)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.far.stdin and self.far.stdout
        self.near = Relay(self.far.stdout.fileno(), self.far.stdin.fileno())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.near.listen(self.listener)
        self.ended = False
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def carry(self) -> None:
        while not (self.ended or self.near.over):
            self.near.turn(0.02)
        self.near.close()

    def connection(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname()[:2], LIMIT)

    def close(self) -> None:
        self.ended = True
        self.thread.join(LIMIT)
        assert self.far.stdin
        self.far.stdin.close()
        assert self.far.wait(LIMIT) == 0, "the end of its input is the end of the far end"
        self.listener.close()


def until(condition, seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def everything(connection: socket.socket) -> bytes:
    content = b""
    while more := connection.recv(65536):
        content += more
    return content


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT)
        yield listener


@pytest.fixture
def both(server: socket.socket) -> Iterator[Both]:
    ends = Both(server.getsockname()[1])
    yield ends
    ends.close()


def test_many_bytes_pass_both_ways_and_each_end_is_passed_on(both: Both, server: socket.socket) -> None:
    with both.connection() as near:
        far = server.accept()[0]  # of the look whether it listens
        assert everything(far) == b""
        far = server.accept()[0]
        far.settimeout(LIMIT)
        sender = threading.Thread(target=lambda: (near.sendall(BIG), near.shutdown(socket.SHUT_WR)))
        sender.start()
        assert everything(far) == BIG
        far.sendall(BIG)
        far.close()
        assert everything(near) == BIG
        sender.join(LIMIT)


def test_a_connection_that_nobody_reads_holds_up_no_other(both: Both, server: socket.socket) -> None:
    server.accept()[0].close()
    with both.connection() as idle, both.connection() as other:
        accepted = [server.accept()[0] for _ in range(2)]
        for near in (idle, other):  # which is whose
            near.sendall(b"?")
        for far in accepted:
            far.settimeout(LIMIT)
            assert far.recv(1) == b"?"
        idle.sendall(b"idle")
        ready = select.select(accepted, [], [], LIMIT)[0]
        by_peer = {peer in ready: peer for peer in accepted}
        idle_there, other_there = by_peer[True], by_peer[False]
        idle_there.settimeout(0.5)
        with pytest.raises(TimeoutError):  # every buffer on the way is full
            for _ in range(64):
                idle_there.sendall(BIG)
        other_there.sendall(b"hello")
        other.settimeout(LIMIT)
        assert other.recv(5) == b"hello"


def test_a_closed_port_is_reported_and_may_open_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_server:
        port = closed_server.getsockname()[1]
    both = Both(port)
    try:
        until(lambda: both.near.greeting is not None)
        assert both.near.greeting == "Connection refused"
        with both.connection() as refused:
            assert everything(refused) == b""
        until(lambda: bool(both.near.refused))
        assert both.near.refused == "Connection refused"
        with socket.create_server(("127.0.0.1", port)) as server, both.connection() as near:
            far = server.accept()[0]
            far.sendall(b"here now")
            far.close()
            assert everything(near) == b"here now"
    finally:
        both.close()


def test_a_lost_remote_end_closes_every_connection(both: Both, server: socket.socket) -> None:
    with both.connection() as near:
        accepted = [server.accept()[0] for _ in range(2)]
        accepted[1].sendall(b"x")
        assert near.recv(1) == b"x"
        both.far.kill()
        assert everything(near) == b""
        until(lambda: both.near.over)
    both.far.wait = lambda _: 0  # type: ignore[method-assign,assignment]


def test_a_program_that_is_wanted_no_more_is_ended_with_all_it_started() -> None:
    code = "import os; from clusterrun.system import attended; "
    code += "print(attended(('sh', '-c', 'sleep 600 & sleep 600'), os.environ, lambda: False, 0.1))"
    result = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=LIMIT)
    assert result.stdout == "143\n", "nothing of it holds the output open"
