"""What NCCL's own service says is passed on, within limits. The service is played, by its protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clusterrun.monitor import external_tools

STATUS = b"""NCCL version 2.27.5 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========
  Nodes  Processes         GPUs  Processes     GPUs
      2          8            1         16       16

Errors
======
INCOMPLETE
  Missing communicator data from 1 job process
"""
"""In the form of NCCL's guide, docs/userguide/source/troubleshooting/ras.rst."""


@contextmanager
def served(answers: dict[bytes, bytes], closes: bool = True) -> Iterator[str]:
    """A service that answers each line it knows; where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                asked = b""
                while not asked.endswith(b"VERBOSE STATUS\n"):
                    asked += peer.recv(100)
                for line in asked.splitlines():
                    peer.sendall(answers.get(line, b"ERROR: Unknown command\n"))
                if not closes:
                    done.wait(60)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            done.set()
            thread.join(60)


def spoken(status: bytes) -> dict[bytes, bytes]:
    return {
        b"CLIENT PROTOCOL 2": b"SERVER PROTOCOL 2\n",
        b"TIMEOUT 3": b"OK\n",
        b"VERBOSE STATUS": status,
    }


def test_its_lines_are_told_without_empty_ones() -> None:
    with served(spoken(STATUS)) as address:
        told = external_tools.nccl_ras(address)
    assert told[0] == "NCCL version 2.27.5 compiled with CUDA 12.8"
    assert told[-2:] == ("INCOMPLETE", "Missing communicator data from 1 job process")
    assert "" not in told


def test_they_are_cut() -> None:
    with served(spoken(b"0" * 400 + b"\n" + b"line\n" * 100)) as address:
        told = external_tools.nccl_ras(address)
    assert (len(told), len(told[0])) == (external_tools.MOST_LINES, external_tools.MOST_CHARACTERS)


def test_what_came_before_it_fell_silent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_tools, "ANSWER_SECONDS", 1.0)
    with served(spoken(STATUS), closes=False) as address:
        assert external_tools.nccl_ras(address)[-1] == "Missing communicator data from 1 job process"


@pytest.mark.parametrize("answers", [{}, {b"VERBOSE STATUS": STATUS}])
def test_somebody_else_on_that_port_is_not_believed(answers: dict[bytes, bytes]) -> None:
    with served(answers) as address:
        assert external_tools.nccl_ras(address) == ()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "host:port", "127.0.0.1:99999", "[::1]:1"])
def test_where_nobody_answers_nothing_is_told(address: str) -> None:
    assert external_tools.nccl_ras(address) == ()
