"""Dialling on this machine: what is refused, what stays silent, what was not tried, sizes of packets."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from clusterrun.preflight.node import dialer
from clusterrun.preflight.node import listener as listener_module
from clusterrun.preflight.node.dialer import ENOUGH, Dialer, Sizes
from clusterrun.preflight.node.listener import Listener
from clusterrun.preflight.tasks import Dialled, DialTask, Target

HERE = "127.0.0.1"


def closed_port(kind: int = socket.SOCK_STREAM) -> int:
    with closing(socket.socket(socket.AF_INET, kind)) as entry:
        entry.bind((HERE, 0))
        return int(entry.getsockname()[1])


@pytest.fixture
def mute() -> Iterator[int]:
    """Yield a port that no longer answers: its server accepts no connection and its queue is full."""
    with ExitStack() as undo:
        listener = undo.enter_context(closing(socket.socket()))
        listener.bind((HERE, 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(2):
            guest = undo.enter_context(closing(socket.socket()))
            guest.setblocking(False)
            guest.connect_ex(address)
        yield address[1]


def watching(selector: selectors.BaseSelector) -> Callable[[Any, int, Callable[[int], None]], None]:
    def watch(what: Any, events: int, callback: Callable[[int], None]) -> None:
        if what in selector.get_map():
            selector.unregister(what)
        if events:
            selector.register(what, events, callback)

    return watch


def dial(task: DialTask) -> tuple[Dialled, ...]:
    with selectors.DefaultSelector() as selector:
        entry = Dialer(task, watching(selector))
        while not entry.is_done:
            for key, events in selector.select(max(0.0, entry.due_at() - time.monotonic())):
                key.data(events)
            entry.tick()
        return entry.dialled()


@pytest.mark.parametrize("places", [1, 2, 512])
def test_a_port_that_was_not_dialled_in_a_sweep_is_not_silent(monkeypatch, mute, places) -> None:
    monkeypatch.setattr(dialer, "_MOST_AT_ONCE", places)
    shut = closed_port()
    targets = (Target(1, "n1", HERE, (mute,), 0), Target(2, "n2", HERE, (shut, shut), 0))
    silent, live = dial(DialTask("", 0, targets, 0.6, closed=True))
    assert (silent.silent, silent.refused) == ((mute,), ())
    assert live.silent == ()
    assert set(live.refused) == (set() if places == 1 else {shut})


def test_held_connections_stay_open_until_all_of_them_are() -> None:
    with selectors.DefaultSelector() as selector:
        listener = Listener("secret", watching(selector))
        target = Target(1, "n1", HERE, listener.ports[:2] * 3, 0)
        entry = Dialer(DialTask("secret", 0, (target,), 60.0, hold=True), watching(selector))
        while not entry.is_done:
            for key, events in selector.select(max(0.0, entry.due_at() - time.monotonic())):
                key.data(events)
            entry.tick()
        for _ in range(3):  # a closed connection would leave here
            for key, events in selector.select(0):
                key.data(events)
        assert len(listener._guests) == 6
        assert [way.silent for way in entry.dialled()] == [()]
        listener.close()


def test_large_packets_that_a_machine_refuses_have_arrived() -> None:
    port = closed_port(socket.SOCK_DGRAM)
    target = Target(1, "n1", HERE, (closed_port(),), port)
    (result,) = dial(DialTask("", 0, (target,), 3.0, sizes=True))
    assert (result.large, result.silent) == (True, ())


@pytest.mark.parametrize(("small", "lost"), [(True, True), (False, False)])
def test_large_packets_are_lost_where_only_small_ones_are_refused(small, lost) -> None:
    """An open port stands for a path that drops large packets: it refuses nothing."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as open_one:
        open_one.bind((HERE, 0))
        sizes = Sizes(HERE, open_one.getsockname()[1])
        if small:
            sizes._sockets[False].connect((HERE, closed_port(socket.SOCK_DGRAM)))
        for _ in range(ENOUGH):
            assert not sizes.lost
            sizes.send()
        assert (sizes.lost, sizes.is_done) == (lost, False)
        sizes.close()
        assert (sizes.lost, sizes.is_done) == (lost, True)


@pytest.mark.parametrize("free", [1, 3, 20])
def test_a_node_with_few_free_ports_opens_as_many_as_it_has(monkeypatch, free) -> None:
    taken = []

    def bound(kind: int, port: int) -> socket.socket:
        if len(taken) >= free:
            raise OSError(98, "Address already in use")
        taken.append(port)
        return socket.socket(socket.AF_INET, kind)

    monkeypatch.setattr(listener_module, "_bound", bound)
    result = listener_module._spread(8)
    assert len(result) == min(free, 8)
    for entry in result:
        entry.close()
