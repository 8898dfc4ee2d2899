"""What the kernel counted on a TCP connection: segments sent and sent again; judges nothing."""

from __future__ import annotations

import socket
import struct

_TCP_INFO = 11
_SIZE = 232
_TOTAL_RETRANS, _DATA_SEGS_OUT, _DSACK_DUPS = 100, 156, 216
"""Offsets in ``struct tcp_info``: 32-bit numbers; Linux 4.6 and, for the last, 4.19."""


def sent_and_resent(one: socket.socket) -> tuple[int, int]:
    """Data segments sent on this connection, and how many of them had to be sent again.

    What the peer says it got twice was not lost: on a busy machine the kernel repeats some too early.
    (0, 0) where the kernel does not tell.
    """
    told = _told(one)
    return _number(told, _DATA_SEGS_OUT), max(0, _number(told, _TOTAL_RETRANS) - _number(told, _DSACK_DUPS))


def transmitted_again(one: socket.socket) -> int:
    """How often the kernel sent something again, needed or not."""
    return _number(_told(one), _TOTAL_RETRANS)


def _told(one: socket.socket) -> bytes:
    try:
        return one.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except OSError:
        return b""


def _number(told: bytes, at: int) -> int:
    return int(struct.unpack_from("=I", told, at)[0]) if len(told) >= at + 4 else 0
