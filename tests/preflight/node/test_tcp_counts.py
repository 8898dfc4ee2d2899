"""The kernel's counts of a connection are read. The bytes were recorded from kernels."""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass

import pytest

from clusterrun.preflight.node import dialer, tcp_counts
from clusterrun.preflight.node.tcp_counts import dropped_again, sent_and_resent, transmitted_again
from clusterrun.preflight.tasks import DialTask, Target

MSS = 1448


@dataclass(frozen=True)
class Counts:
    """The fields of ``struct tcp_info`` that matter, by the names of the kernel."""

    data_segs_out: int
    total_retrans: int = 0
    dsack_dups: int = 0
    bytes_acked: int = 0
    bytes_sent: int = 0
    bytes_retrans: int = 0
    unacked: int = 0


class Connection(socket.socket):
    """A socket whose kernel returns these counts; an old kernel returns only ``size`` bytes."""

    def __init__(self, counts: Counts, size: int = 232) -> None:
        super().__init__()
        message = bytearray(232)
        for at, number in ((16, MSS), (24, counts.unacked), (100, counts.total_retrans)):
            struct.pack_into("=I", message, at, number)
        struct.pack_into("=I", message, 156, counts.data_segs_out)
        struct.pack_into("=I", message, 216, counts.dsack_dups)
        struct.pack_into("=Q", message, 120, counts.bytes_acked)
        struct.pack_into("=QQ", message, 200, counts.bytes_sent, counts.bytes_retrans)
        self._told = bytes(message[:size])

    def getsockopt(self, *requested: int) -> bytes:  # type: ignore[override]
        return self._told[: requested[2]]


HEALTHY = Counts(300, bytes_acked=360001, bytes_sent=360000)
LOST_ON_THE_WAY = Counts(345, 45, bytes_acked=360001, bytes_sent=414000, bytes_retrans=54000)
DROPPED_BY_THE_SENDER = Counts(345, 1, bytes_acked=360001, bytes_sent=414000)
UNDER_WAY = Counts(305, bytes_acked=360001, bytes_sent=366000, unacked=5)
REPEATED_TOO_EARLY = Counts(310, 10, 10, bytes_acked=360001, bytes_sent=374480, bytes_retrans=14480)


@pytest.mark.parametrize(
    ("counts", "resent"),
    [
        (HEALTHY, 0),
        (LOST_ON_THE_WAY, 45),
        (DROPPED_BY_THE_SENDER, 1 + 37),
        (UNDER_WAY, 0),
        (REPEATED_TOO_EARLY, 0),
    ],
)
def test_packets_that_the_sender_drops_count_as_retransmitted(counts: Counts, resent: int) -> None:
    with Connection(counts) as entry:
        assert sent_and_resent(entry) == (counts.data_segs_out, resent)
        assert transmitted_again(entry) == resent + counts.dsack_dups


@pytest.mark.parametrize("size", [0, 104, 160, 192])
def test_an_old_kernel_gives_fewer_counts_and_no_wrong_ones(size: int) -> None:
    with Connection(DROPPED_BY_THE_SENDER, size) as entry:
        assert sent_and_resent(entry) == (345 if size >= 160 else 0, 1 if size >= 104 else 0)


def test_a_connection_of_this_machine_loses_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as entry,
        server.accept()[0] as other,
    ):
        for _ in range(20):
            entry.sendall(bytes(6000))
            remaining = 6000
            while remaining:
                remaining -= len(other.recv(remaining))
        sent, resent = sent_and_resent(entry)
        assert sent > 0
        assert resent == 0


def test_packets_dropped_at_retransmission_are_read_from_the_kernels_counters(tmp_path, monkeypatch) -> None:
    file = tmp_path / "netstat"
    monkeypatch.setattr(tcp_counts, "_COUNTERS", str(file))
    assert dropped_again() == 0
    file.write_text(
        "TcpExt: SyncookiesSent TCPRetransFail TCPSynRetrans\nTcpExt: 3 12 14\nIpExt: A\nIpExt: 1\n"
    )
    assert dropped_again() == 12
    for other in (
        "",
        "TcpExt: A\nTcpExt: 1\n",
        "TcpExt: TCPRetransFail\n",
        "TcpExt: TCPRetransFail\nTcpExt: x\n",
    ):
        file.write_text(other)
        assert dropped_again() == 0


@pytest.mark.parametrize(("counts", "dropped"), [((5, 7), True), ((5, 6), False), ((0, 0), False)])
def test_silent_calls_were_dropped_locally_if_the_machine_dropped_as_many(
    monkeypatch, counts, dropped
) -> None:
    message = iter(counts)
    monkeypatch.setattr(dialer, "dropped_again", lambda: next(message))
    with socket.socket() as deaf, socket.create_server(("127.0.0.1", 0), backlog=1) as full:
        deaf.bind(("127.0.0.1", 0))
        refusing, port = deaf.getsockname()[1], full.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        for entry in held:  # its queue is full now: what is dialled there gets no answer
            entry.setblocking(False)
            entry.connect_ex(("127.0.0.1", port))
        targets = (
            Target(1, "n1", "127.0.0.1", (port, port), 9),
            Target(2, "n2", "127.0.0.1", (refusing,), 9),
        )
        watched = []
        entry = dialer.Dialer(
            DialTask("c0ffee", 0, targets, 0.0, closed=True), lambda *what: watched.append(what)
        )
        calls = {sock: call for sock, events, call in watched if events}
        for sock in select.select([], list(calls), [], 0.2)[1]:
            calls[sock](dialer.WRITE)
        entry.tick()
        first, second = entry.dialled()
    for sock in held:
        sock.close()
    assert (first.dropped, second.dropped) == (dropped, False)
    assert (first.silent, second.refused) == ((port, port), (refusing,))
