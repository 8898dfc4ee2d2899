"""Finds in NCCL's own log which network it chose, and how far it came; knows no process and no test."""

from __future__ import annotations

import re

_CHOSEN = re.compile(r"NCCL INFO (?:Assigned NET plugin (\S+) to comm|Using network (.+?)\s*$)", re.MULTILINE)
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) : Using (.+?)\s*(?:; OOB .*)?$", re.MULTILINE)
_DEVICE = re.compile(r"\[\d+\] ?([\w.-]+)")
"""``[0]mlx5_0:1/IB``; ports that NCCL merges: ``[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}``."""
_MELLANOX_PLUGIN = "IBext"
"""``IBext``, ``IBext_v8``: its devices NCCL lists as those of IB."""
_CONNECTS = re.compile(r"NCCL INFO .*(?:Init START|Channel \d|Init COMPLETE)")
"""Before its first line of these (2.18 and later) NCCL is on this GPU alone, and loads its kernels."""
_DIRECT = re.compile(r"via NET/.+/GDRDMA")


def loads(log: str) -> bool:
    """Whether NCCL has begun and has not come to other ranks yet.

    A build without code for these GPUs compiles it there, which takes a minute (nccl#1646).
    """
    return "NCCL INFO" in log and not _CONNECTS.search(log)


def chosen(log: str) -> str:
    """``NET/IB mlx5_0 mlx5_1 GDRDMA``, ``NET/Socket eth0``, or empty if no network is spoken of."""
    named = _CHOSEN.search(log)
    if not named:
        return ""
    network = (named[1] or named[2]).strip()
    of = "IB" if network.startswith(_MELLANOX_PLUGIN) else network
    devices = [name for kind, using in _DEVICES.findall(log) if kind == of for name in _DEVICE.findall(using)]
    direct = ["GDRDMA"] if _DIRECT.search(log) else []
    return " ".join([f"NET/{network}", *dict.fromkeys(devices), *direct])
