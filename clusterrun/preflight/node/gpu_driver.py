"""Keep the GPUs of this node initialized during a check."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from clusterrun import proc
from clusterrun.preflight.node.forked_call import ForkedCall, call

DEVICES = "/dev"


def hold_driver(folder: str = DEVICES) -> ForkedCall | None:
    """Start a process that keeps all NVIDIA devices open, as nvidia-persistenced does; None without devices.

    The driver initializes the GPUs whenever the first process opens them, without persistence mode. It takes
    up to half a minute (Azure/AgentBaker#2897). This process pays it once for the whole check. A child opens
    the devices, since a broken GPU may block it for ever. Raises ``OSError`` if no process can be started.
    """
    paths = [f"{folder}/{name}" for name in proc.listed(folder) if name.removeprefix("nvidia").isdecimal()]
    return call(lambda: _open_and_wait(sorted(paths)), float("inf")) if paths else None


def _open_and_wait(paths: list[str]) -> Iterator[int]:
    opened = 0
    for path in paths:
        try:
            os.open(path, os.O_RDWR | os.O_CLOEXEC)
            opened += 1
        except OSError:
            continue  # A cgroup denies it to this job.
    yield opened
    signal.pause()
