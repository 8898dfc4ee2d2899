"""Which nodes hold a connection to a launcher, from the kernel's tables and from real sockets."""

from __future__ import annotations

import os
import socket

from clusterrun.coordinator.io import launcher_links
from clusterrun.coordinator.io.launcher_links import SETTLED, connected, dialled

TABLE = """\
   0: 00000000:8377 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 626391 1
   1: 0200640A:8377 0700640A:CD68 01 00000000:00000000 02:0009EAC0 00000000     0        0 626440 2
   2: 0200640A:8377 0500640A:B8A0 01 00000000:00000000 02:0009EAC0 00000000     0        0 626434 2
   3: 0200640A:8377 0200640A:BCC2 01 00000000:00000000 02:0009EAC0 00000000     0        0 626458 2
   4: 0200640A:8377 0300640A:BCC3 01 00000000:00000000 02:0009EAC0 00000000     0        0 999999 2
   5: 0200640A:BF1A 0900640A:1AA2 01 00000000:00000000 00:00000000 00000000     0        0 626459 1
   6: 0200640A:8377 0800640A:C222 06 00000000:00000000 03:00001773 00000000     0        0 0 3
"""
MAPPED = (
    "   7: 0000000000000000FFFF00000200640A:8377 0000000000000000FFFF00000400640A:A001 01 0 0 0 0 0 626460 1"
)


def test_only_connections_that_the_program_itself_accepted_count() -> None:
    own = {"626391", "626440", "626434", "626458", "626459", "626460"}
    rows = [line.split() for line in (*TABLE.splitlines(), MAPPED)]
    assert connected(rows, own) == {"10.100.0.7", "10.100.0.5", "10.100.0.2", "10.100.0.4"}
    assert connected(rows, {"626440"}) == connected([], own) == set()


def test_whom_the_program_itself_dialled_and_still_waits_for() -> None:
    own = {"626391", "626440", "626459", "626461"}
    tried = (
        "   8: 0200640A:BF1C 0A00640A:1AA2 02 00000000:00000000 01:00000001 00000000     0        0 626461 1"
    )
    rows = [line.split() for line in (*TABLE.splitlines(), tried)]
    assert dialled(rows, own) == {"10.100.0.9", "10.100.0.10"}
    assert dialled(rows, {"626391", "626440"}) == set()


def test_a_connected_peer_is_printed_and_then_no_absent_node(capfd, monkeypatch) -> None:
    rows = [
        ["1:", "0100007F:8377", "0100007F:CD68", "01", "0", "0", "0", "0", "0", "2", "2"],
        ["0:", "00000000:8377", "00000000:0000", "0A", "0", "0", "0", "0", "0", "1", "1"],
    ]
    monkeypatch.setattr(launcher_links.proc.TcpTables, "rows", lambda self, pid: rows)
    monkeypatch.setattr(launcher_links.proc, "sockets", lambda process: {"1", "2", "3"})
    launcher_links.main(1, ["localhost"])
    assert capfd.readouterr().out == f"localhost\n{SETTLED}\n"
    rows.append(["2:", "0100007F:9000", "0100007F:1AA2", "01", "0", "0", "0", "0", "0", "3", "1"])
    launcher_links.main(1, ["localhost"])
    assert capfd.readouterr().out == "localhost\n"


def test_the_peers_of_a_real_listener_are_printed_without_unknown_ones(capfd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert launcher_links.main(os.getpid(), ["localhost", "no.such.name.invalid"]) == 0
        assert capfd.readouterr().out == ""
        with socket.create_connection(server.getsockname()):
            accepted, _ = server.accept()
            with accepted:
                assert launcher_links.main(os.getpid(), ["localhost", "no.such.name.invalid"]) == 0
    assert capfd.readouterr().out == "localhost\n"
    assert launcher_links.main(2**22 + 1, ["localhost"]) == 0
    assert capfd.readouterr().out == ""
