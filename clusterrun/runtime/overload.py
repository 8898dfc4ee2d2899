"""Measure whether this machine has more work than it can do."""

from __future__ import annotations

import os
import re

from clusterrun.model import contract
from clusterrun.proc import content, seconds_without_processor
from clusterrun.runtime.event_loop import steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.model.overloads import Overloads

# Above this, a process gets less than a sixteenth of a processor. The shortest limits, of 5 s, leave time for
# 0.3 s of work then.
RUNNABLE_PER_PROCESSOR = 16.0
# Percent of the last 10 s in which every process of the machine waited for memory, or for a disk.
STALLED_PERCENT = 50.0


def is_crowded() -> bool:
    """Return whether too many processes of this machine want a processor now."""
    load = re.match(rb"\S+ \S+ \S+ (\d+)/", content("/proc/loadavg"))
    return load is not None and int(load[1]) > RUNNABLE_PER_PROCESSOR * (os.cpu_count() or 1)


def explains_wait(without: float, waited: float) -> bool:
    """Return whether a wait of a process of this machine proves nothing.

    ``without``: how long of ``waited`` the process had no processor, in seconds. On a crowded machine it may
    also have waited for a lock that another process without a processor holds.
    """
    return without >= contract.OVERLOAD_SHARE * waited or is_crowded()


def is_overloaded() -> bool:
    """Return whether the processors, the memory or the disks of this machine are overloaded now."""
    if is_crowded():
        return True
    for resource in ("memory", "io"):
        stalled = re.search(rb"^full avg10=([\d.]+)", content(f"/proc/pressure/{resource}"), re.MULTILINE)
        if stalled and float(stalled[1]) >= STALLED_PERCENT:
            return True
    return False


class OverloadMeter:
    """Measures the overload of this machine from call to call."""

    def __init__(self) -> None:
        self._at, self._waited = steady(), seconds_without_processor(os.getpid())

    def seconds(self) -> float:
        """Return for how many seconds since the last call the machine was overloaded.

        The state at the end of that time counts for the whole of it. This process shows an overload that the
        counters of the machine do not show, for example of the few processors that a job may use.
        """
        now, waited = steady(), seconds_without_processor(os.getpid())
        passed, without = now - self._at, waited - self._waited
        self._at, self._waited = now, waited
        return passed if without > contract.OVERLOAD_SHARE * passed or is_overloaded() else 0.0


class PatientLimit:
    """A limit that gets more time if this machine is overloaded. Ask it every few seconds."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = steady(), seconds
        self._meter = OverloadMeter()
        self._overloads: Overloads | None = None

    def expires_within(self, seconds: float) -> bool:
        """Return whether the limit expires in that time, as far as that is known now."""
        now, overloaded = steady(), self._meter.seconds()
        if overloaded:
            from clusterrun.model.overloads import Overloads  # few agents need it

            self._overloads = self._overloads or Overloads()
            self._overloads.add(now, overloaded)
        at = now + seconds
        if at <= self._began + self._seconds:
            return False
        return self._overloads is None or not self._overloads.extend(self._began, self._seconds, at)
