"""What the kernel counted on a TCP connection: segments sent and sent again; judges nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

_COUNTERS = "/proc/net/netstat"
_TCP_INFO = 11
_SIZE = 232
_WORDS = {"snd_mss": 16, "unacked": 24, "total_retrans": 100, "data_segs_out": 156, "dsack_dups": 216}
"""Offsets in ``struct tcp_info``: 32-bit numbers; Linux 4.6 and, for the last, 4.19."""
_LONGS = {"bytes_acked": 120, "bytes_sent": 200, "bytes_retrans": 208}
"""The same of 64-bit numbers; Linux 4.19."""


def sent_and_resent(sock: socket.socket) -> tuple[int, int]:
    """Data segments sent on this connection, and how many of them had to be sent again.

    What the peer says it got twice was not lost: on a busy machine the kernel repeats some too early.
    (0, 0) where the kernel does not tell.
    """
    told = _told(sock)
    repeated = max(0, told["total_retrans"] - told["dsack_dups"])
    return told["data_segs_out"], repeated + _dropped_here(told)


def transmitted_again(sock: socket.socket) -> int:
    """How often the kernel sent something again, needed or not."""
    told = _told(sock)
    return told["total_retrans"] + _dropped_here(told)


def dropped_again() -> int:
    """How many segments this machine dropped itself when it sent them again; 0 if it does not tell."""
    try:
        with open(_COUNTERS, encoding="ascii") as file:
            rows = [line.split() for line in file if line.startswith("TcpExt:")]
        return int(dict(zip(*rows))["TCPRetransFail"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _dropped_here(told: Mapping[str, int]) -> int:
    """Segments that this machine itself dropped (a rule of its firewall, a full queue) and sent later.

    The kernel does not count these as sent again, but it counts their bytes each time it tries.
    """
    known = told["bytes_acked"] + told["unacked"] * told["snd_mss"]
    return max(0, told["bytes_sent"] - told["bytes_retrans"] - known) // max(1, told["snd_mss"])


def _told(sock: socket.socket) -> dict[str, int]:
    """What the kernel counts, by name; 0 for what it does not tell."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE).ljust(_SIZE, b"\0")
    except OSError:
        told = bytes(_SIZE)
    both = (("=I", _WORDS), ("=Q", _LONGS))
    return {name: struct.unpack_from(kind, told, at)[0] for kind, of in both for name, at in of.items()}
