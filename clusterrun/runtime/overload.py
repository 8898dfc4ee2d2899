"""Tells whether this machine has more work than it can do: then an expired limit blames no node."""

from __future__ import annotations

import os
import re

from clusterrun.model import contract
from clusterrun.proc import content
from clusterrun.runtime.event_loop import steady

# Above this, a process gets less than a quarter of a processor.
RUNNABLE_PER_PROCESSOR = 4.0
# Percent of the last 10 s in which every process of the machine waited for memory, or for a disk.
STALLED_PERCENT = 50.0


def is_overloaded() -> bool:
    """Return whether the processors, the memory or the disks of this machine are overloaded now."""
    load = re.match(rb"\S+ \S+ \S+ (\d+)/", content("/proc/loadavg"))
    if load and int(load[1]) > RUNNABLE_PER_PROCESSOR * (os.cpu_count() or 1):
        return True
    for resource in ("memory", "io"):
        stalled = re.search(rb"^full avg10=([\d.]+)", content(f"/proc/pressure/{resource}"), re.MULTILINE)
        if stalled and float(stalled[1]) >= STALLED_PERCENT:
            return True
    return False


class PatientLimit:
    """A limit that does not expire while this machine is overloaded, within ``OVERLOAD_FACTOR``."""

    def __init__(self, seconds: float) -> None:
        self._until = steady() + seconds
        self._last = self._until + contract.OVERLOAD_FACTOR * seconds

    def expires_within(self, seconds: float) -> bool:
        """Return whether the limit expires in that time, as far as that is known now."""
        now = steady()
        if now + seconds <= self._until:
            return False
        if now + seconds > self._last or not is_overloaded():
            return True
        self._until = now + seconds
        return False
