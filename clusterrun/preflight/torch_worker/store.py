"""The store at which the ranks of a test meet; knows no stage."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOOPBACK = "127.0.0.1"


def lead(listening: int, port: int, world: int, seconds: float) -> dist.Store:
    """The store itself, on a socket that listens already; what dialled it before is served. Raises as torch.

    The lead reaches itself by loopback: what becomes of its address is for the others to see.
    """
    given = {"is_master": True, "master_listen_fd": listening}
    try:
        return _store(_LOOPBACK, port, world, seconds, **given)
    except NotImplementedError:
        # Before torch 2.8 only the older of its two servers takes a socket over.
        return _store(_LOOPBACK, port, world, seconds, **given, use_libuv=False)


def guest(address: str, port: int, world: int, seconds: float) -> dist.Store:
    """The lead's store, dialled for so many seconds. Raises as torch."""
    return _store(address, port, world, seconds, is_master=False)


def _store(address: str, port: int, world: int, seconds: float, **given: Any) -> dist.Store:
    limit = timedelta(seconds=seconds)
    return dist.TCPStore(address, port, world, timeout=limit, wait_for_workers=False, **given)
