"""Read the kernel's counts of a TCP connection: segments sent and retransmitted."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

_COUNTERS = "/proc/net/netstat"
_TCP_INFO = 11
_SIZE = 232
# Offsets of 32-bit numbers in ``struct tcp_info``. Linux 4.6, and 4.19 for the last.
_WORDS = {"snd_mss": 16, "unacked": 24, "total_retrans": 100, "data_segs_out": 156, "dsack_dups": 216}
# Offsets of 64-bit numbers. Linux 4.19.
_LONGS = {"bytes_acked": 120, "bytes_sent": 200, "bytes_retrans": 208}


def sent_and_resent(sock: socket.socket) -> tuple[int, int]:
    """Return the data segments sent on this connection, and the number that had to be sent again.

    Segments that the peer received twice were not lost: a busy machine retransmits some too early.
    Return (0, 0) if the kernel does not report them.
    """
    counts = _counts(sock)
    repeated = max(0, counts["total_retrans"] - counts["dsack_dups"])
    return counts["data_segs_out"], repeated + _dropped_here(counts)


def transmitted_again(sock: socket.socket) -> int:
    """Return the number of retransmissions, needed or not."""
    counts = _counts(sock)
    return counts["total_retrans"] + _dropped_here(counts)


def dropped_again() -> int:
    """Return the retransmissions that this machine itself dropped, or 0 if they are not counted."""
    try:
        with open(_COUNTERS, encoding="ascii") as file:
            rows = [line.split() for line in file if line.startswith("TcpExt:")]
        return int(dict(zip(*rows))["TCPRetransFail"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _dropped_here(counts: Mapping[str, int]) -> int:
    """Return the segments that this machine itself dropped (a firewall rule, a full queue) and sent later.

    The kernel does not count these as retransmitted, but it counts their bytes at each try.
    """
    accounted = counts["bytes_acked"] + counts["unacked"] * counts["snd_mss"]
    return max(0, counts["bytes_sent"] - counts["bytes_retrans"] - accounted) // max(1, counts["snd_mss"])


def _counts(sock: socket.socket) -> dict[str, int]:
    """Return the kernel's counts by name, 0 for a count that it does not report."""
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE).ljust(_SIZE, b"\0")
    except OSError:
        data = bytes(_SIZE)
    counts = {name: struct.unpack_from("=I", data, offset)[0] for name, offset in _WORDS.items()}
    counts.update({name: struct.unpack_from("=Q", data, offset)[0] for name, offset in _LONGS.items()})
    return counts
