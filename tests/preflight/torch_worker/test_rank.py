"""The laws of the store: it serves on a socket that listens already, with every server that torch has had."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from clusterrun.preflight.torch_worker import rank
from clusterrun.preflight.torch_worker.torch_server import ListeningPorts

REAL = dist.TCPStore


def older(*args, use_libuv=True, **named):
    """Refuse a socket of ours, as the newer server of torch before 2.8 does."""
    if use_libuv and "master_listen_fd" in named:
        raise NotImplementedError("the libuv backend does not support initialization with a listen fd")
    return REAL(*args, use_libuv=use_libuv, **named)


@pytest.mark.parametrize("store", [REAL, older], ids=["this torch", "a fake of torch before 2.8"])
def test_the_store_takes_over_a_listening_port(monkeypatch, store) -> None:
    monkeypatch.setattr(dist, "TCPStore", store)
    ports = ListeningPorts()
    port = ports.fill()[0]
    host_store = rank.host_store(ports.take(port).detach(), port, 2, 60)
    connect_store = rank.connect_store("127.0.0.1", port, 2, 60)
    host_store.set("word", "heard")
    assert connect_store.get("word") == b"heard"


def test_a_port_is_used_once_and_replaced() -> None:
    ports = ListeningPorts()
    first = ports.fill()
    assert len(set(first)) == 4
    with ports.take(first[0]) as taken:
        assert taken.getsockname()[1] == first[0]
        (new,) = ports.fill()
        assert new not in first
        with pytest.raises(OSError, match="in use"):
            ports.take(first[0])
