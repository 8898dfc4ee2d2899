"""What the kernel counted on a TCP connection: segments sent and sent again; judges nothing."""

from __future__ import annotations

import socket
import struct

_COUNTERS = "/proc/net/netstat"
_TCP_INFO = 11
_SIZE = 232
_SND_MSS, _UNACKED, _TOTAL_RETRANS, _DATA_SEGS_OUT, _DSACK_DUPS = 16, 24, 100, 156, 216
"""Offsets in ``struct tcp_info``: 32-bit numbers; Linux 4.6 and, for the last, 4.19."""
_BYTES_ACKED, _BYTES_SENT, _BYTES_RETRANS = 120, 200, 208
"""The same of 64-bit numbers; Linux 4.19."""


def sent_and_resent(sock: socket.socket) -> tuple[int, int]:
    """Data segments sent on this connection, and how many of them had to be sent again.

    What the peer says it got twice was not lost: on a busy machine the kernel repeats some too early.
    (0, 0) where the kernel does not tell.
    """
    told = _told(sock)
    repeated = max(0, _number(told, _TOTAL_RETRANS) - _number(told, _DSACK_DUPS))
    return _number(told, _DATA_SEGS_OUT), repeated + _dropped_here(told)


def transmitted_again(sock: socket.socket) -> int:
    """How often the kernel sent something again, needed or not."""
    told = _told(sock)
    return _number(told, _TOTAL_RETRANS) + _dropped_here(told)


def dropped_again() -> int:
    """How many segments this machine dropped itself when it sent them again; 0 if it does not tell."""
    try:
        with open(_COUNTERS, encoding="ascii") as file:
            rows = [line.split() for line in file if line.startswith("TcpExt:")]
        return int(dict(zip(*rows))["TCPRetransFail"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _dropped_here(told: bytes) -> int:
    """Segments that this machine itself dropped (a rule of its firewall, a full queue) and sent later.

    The kernel does not count these as sent again, but it counts their bytes each time it tries.
    """
    sent = _number(told, _BYTES_SENT, "=Q") - _number(told, _BYTES_RETRANS, "=Q")
    known = _number(told, _BYTES_ACKED, "=Q") + _number(told, _UNACKED) * _number(told, _SND_MSS)
    return max(0, sent - known) // max(1, _number(told, _SND_MSS))


def _told(sock: socket.socket) -> bytes:
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except OSError:
        return b""


def _number(told: bytes, at: int, kind: str = "=I") -> int:
    return int(struct.unpack_from(kind, told, at)[0]) if len(told) >= at + struct.calcsize(kind) else 0
