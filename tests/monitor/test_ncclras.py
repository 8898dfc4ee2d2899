"""What NCCL's own service says is passed on, within limits. The service is played, by its protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterrun.monitor import external_tools
from clusterrun.monitor.collector import pid_for_ras

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "nccl-ras" / "nccl-2.28.9-one-h100.txt"
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
        result = threading.Event()

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                requested = b""
                while not requested.endswith(b"VERBOSE STATUS\n"):
                    requested += peer.recv(100)
                for line in requested.splitlines():
                    peer.sendall(answers.get(line, b"ERROR: Unknown command\n"))
                if not closes:
                    result.wait(60)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            result.set()
            thread.join(60)


def spoken(status: bytes) -> dict[bytes, bytes]:
    return {
        b"CLIENT PROTOCOL 2": b"SERVER PROTOCOL 2\n",
        b"TIMEOUT 3": b"OK\n",
        b"VERBOSE STATUS": status,
    }


def test_the_version_and_the_sections_that_tell_something_are_reported() -> None:
    with served(spoken(STATUS)) as address:
        report = external_tools.nccl_ras(address)
    assert report == (
        "NCCL version 2.27.5 compiled with CUDA 12.8",
        "INCOMPLETE",
        "Missing communicator data from 1 job process",
    )


def test_a_report_of_nccl_2_28_on_an_h100_is_read() -> None:
    """Recorded on 25 November 2026: one rank, which a kernel keeps busy."""
    with served(spoken(RECORDED.read_bytes())) as address:
        report = external_tools.nccl_ras(address)
    assert report[0] == "NCCL version 2.28.9 compiled with CUDA 13.0"
    assert report[-1].split() == ["0", "1", "1", "1", "1", "1", "RUNNING", "OK"]


def test_a_long_report_is_cut() -> None:
    status = b"NCCL version 2.29.2\nErrors\n======\n" + b"0" * 400 + b"\n" + b"line\n" * 100
    with served(spoken(status)) as address:
        report = external_tools.nccl_ras(address)
    assert (len(report), len(report[1])) == (external_tools.MOST_LINES, external_tools.MOST_CHARACTERS)


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


NCCL = SimpleNamespace(backend="nccl")
GLOO = SimpleNamespace(backend="gloo")


@pytest.mark.parametrize(
    ("groups", "version", "moved", "pid"),
    [
        ([NCCL], [2, 29, 2], False, 7),
        ([NCCL], [2, 30, 1], False, 7),
        ([NCCL], [2, 28, 9], False, 0),
        ([NCCL], [], False, 0),  # an older hook in the rank tells no version
        ([NCCL], [2, 29, 2], True, 0),
        ([GLOO], [2, 29, 2], False, 0),
        ([], [], False, 0),
    ],
)
def test_nccl_is_asked_only_by_a_safe_version_and_if_no_rank_moves(groups, version, moved, pid) -> None:
    ranks = [
        SimpleNamespace(process=SimpleNamespace(pid=7), groups=groups, moved=False),
        SimpleNamespace(process=SimpleNamespace(pid=8), groups=groups, moved=moved),
    ]
    answers = {7: {"nccl": version}, 8: {"nccl": version}}
    assert pid_for_ras(ranks, answers) == pid
