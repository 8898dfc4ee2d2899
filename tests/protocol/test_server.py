"""The laws of the entry: strangers get little time, little room and no line; agents get in beside them."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from clusterrun.protocol import messages as m
from clusterrun.protocol import server as module
from clusterrun.protocol.bootstrap import Bootstrap, NoBootstrap, Timeouts, encode_bootstrap, read_bootstrap
from clusterrun.protocol.client import CannotJoin, Joined, join
from clusterrun.protocol.codec import Encoder
from clusterrun.protocol.server import Server, listening
from clusterrun.runtime.event_loop import EventLoop, steady

SECRET = b"k" * 32


class Door:
    """A server in its loop, and what it was heard to say."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.said: list[tuple[object, ...]] = []
        listener = listening("127.0.0.1", 100)
        self.port: int = listener.getsockname()[1]
        self.server = Server(self.loop, listener, self.bootstrap())
        self.server.joined = lambda link, hello: self.said.append(("joined", link, hello.node))
        self.server.heard = lambda link, message: self.said.append(("heard", link, message))
        self.server.left = lambda link, why: self.said.append(("left", link, why))

    def turn(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited in vain for: {what}"
            self.loop.wait(steady() + 0.01)

    def bootstrap(self, secret: bytes = SECRET, **other: object) -> Bootstrap:
        values = {"run_id": "run-a", "epoch": 0, **other}
        return Bootstrap(secret.hex(), addresses=("127.0.0.1",), port=self.port, agents=4,
                          timeouts=Timeouts(join=30.0), **values)  # type: ignore[arg-type]  # fmt: skip

    def joining(self, bootstrap: Bootstrap) -> list[Joined | Exception]:
        """Join in a thread (an agent's joining blocks) while the entry turns here."""
        result: list[Joined | Exception] = []

        def enter() -> None:
            try:
                result.append(join(bootstrap, lambda own: m.Hello(2, "n2", own, 7)))
            except CannotJoin as error:
                result.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        self.turn(lambda: result, "an answer")
        thread.join()
        return result


@pytest.fixture
def entry() -> Iterator[Door]:
    element = Door()
    yield element
    element.server.close()


@pytest.fixture
def come(entry: Door) -> Iterator[Callable[[str], socket.socket]]:
    with ExitStack() as stack:

        def connect(address: str) -> socket.socket:
            element = stack.enter_context(socket.socket())
            element.bind((address, 0))
            element.connect(("127.0.0.1", entry.port))
            element.settimeout(5)
            return element

        yield connect


def closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(10) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_an_agent_joins_sends_messages_and_its_exit_is_reported_once(entry: Door) -> None:
    (joined,) = entry.joining(entry.bootstrap())
    assert isinstance(joined, Joined)
    joined.connection.sendall(joined.end.seal(Encoder().body(m.Beat(4))))
    entry.turn(lambda: len(entry.said) == 2, "a beat")
    entry.server.send(1, m.Ack(4, 9.5))
    entry.turn(lambda: True, "sent")
    assert joined.end.receive(joined.connection.recv(1000)) == [m.Ack(4, 9.5)]
    joined.connection.close()
    entry.turn(lambda: len(entry.said) == 3, "its end")
    assert entry.said == [("joined", 1, 2), ("heard", 1, m.Beat(4)), ("left", 1, "it closed the connection")]


def test_the_end_of_a_dropped_agent_is_not_reported(entry: Door) -> None:
    (joined,) = entry.joining(entry.bootstrap())
    assert isinstance(joined, Joined)
    entry.server.drop(1)
    assert joined.connection.recv(10) == b""
    entry.server.send(1, m.Farewell())
    joined.connection.close()
    assert entry.said == [("joined", 1, 2)]


def test_a_bad_frame_closes_the_connection_without_a_message(entry: Door) -> None:
    (joined,) = entry.joining(entry.bootstrap())
    assert isinstance(joined, Joined)
    frame = bytearray(joined.end.seal(Encoder().body(m.Beat(4))))
    frame[-1] ^= 1
    joined.connection.sendall(frame)
    entry.turn(lambda: len(entry.said) == 2, "its end")
    assert entry.said == [("joined", 1, 2), ("left", 1, "a frame whose MAC is wrong")]
    joined.connection.close()


@pytest.mark.parametrize("change, message", [
    ({"secret": b"x" * 32}, "does not know the secret"),
    ({"run_id": "run-b"}, "it refused: the agent is of another run"),
    ({"epoch": 1}, "it refused: the agent is of start 1, the coordinator of start 0"),
])  # fmt: skip
def test_a_refused_agent_exits_at_once_with_the_reason(
    entry: Door, change: dict[str, object], message: str
) -> None:
    (error,) = entry.joining(entry.bootstrap(**change))  # type: ignore[arg-type]
    assert message in str(error) and entry.said == []


def test_a_entry_that_nobody_opens_is_named_after_the_limit(entry: Door) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        ended = Bootstrap(SECRET.hex(), "run-a", 0, ("127.0.0.1",), port, 1, Timeouts(join=0.5))
        with pytest.raises(CannotJoin, match=f"at 127.0.0.1 port {port}: .*refused"):
            join(ended, lambda own: m.Hello(2, "n2", own, 7))


def test_a_stranger_has_a_single_limit_for_all_its_messages(
    entry: Door, come: Callable[[str], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROOF_SECONDS", 0.3)
    silent, slow = come("127.3.0.1"), come("127.3.0.2")

    def drip() -> bool:
        try:
            slow.send(b"\0")
        except OSError:
            pass
        return closed(silent) and closed(slow)

    entry.turn(drip, "both closed")
    assert entry.server.refused == 2


def test_an_address_has_eight_connections_and_agents_of_other_addresses_join(
    entry: Door, come: Callable[[str], socket.socket]
) -> None:
    crowd = [come("127.3.0.1") for _ in range(30)]
    entry.turn(lambda: sum(map(closed, crowd)) == 22, "22 sent away")
    (joined,) = entry.joining(entry.bootstrap())
    assert isinstance(joined, Joined)
    joined.connection.close()


def test_an_address_that_many_agents_share_has_a_place_for_each(
    entry: Door, come: Callable[[str], socket.socket]
) -> None:
    crowd = [come("127.0.0.1") for _ in range(20)]
    entry.turn(
        lambda: sum(map(closed, crowd)) == 8, "8 of 20 sent away: there are 4 agents and 8 more places"
    )


def test_an_agent_that_reads_nothing_is_dropped_before_it_fills_the_memory(entry: Door) -> None:
    (joined,) = entry.joining(entry.bootstrap())
    assert isinstance(joined, Joined)
    for number in range(2000):
        entry.server.send(1, m.SignalRanks(number, 10))
        entry.server.send(1, m.ReservePort(10**200))
        if len(entry.said) > 1:
            break
        for _ in range(100):
            entry.server.send(1, m.ReservePort(10**200))
    assert entry.said == [("joined", 1, 2), ("left", 1, "it does not read its messages")]
    joined.connection.close()


def test_the_listener_waits_without_free_descriptors_instead_of_spinning(entry: Door) -> None:
    """The shortage is played: really using up all descriptors would break the test itself."""
    calls = 0

    class Short:
        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> object:
            nonlocal calls
            calls += 1
            if calls <= 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return self.real.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    entry.server._listener = Short(entry.server._listener)  # type: ignore[assignment]
    began = time.monotonic()
    (joined,) = entry.joining(entry.bootstrap())
    assert isinstance(joined, Joined) and calls < 10 and time.monotonic() - began > 0.5
    joined.connection.close()


def test_an_bootstrap_survives_its_line_and_anything_else_is_not_repeated(entry: Door) -> None:
    bootstrap = entry.bootstrap()
    assert read_bootstrap(encode_bootstrap(bootstrap)) == bootstrap
    for line in (b"", b"{}", b"secret-secret", encode_bootstrap(bootstrap)[:-9], b'{"secret":"00"}'):
        with pytest.raises(NoBootstrap) as caught:
            read_bootstrap(line)
        assert "secret-secret" not in str(caught.value)
