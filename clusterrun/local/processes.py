"""Identify, check and end the coordinator process of a run on this machine.

The job id of such a run is ``PID.START``. START is the process's start in kernel ticks since boot, which
distinguishes processes that have the same process id one after the other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from clusterrun import proc
from clusterrun.model.contract import KILL_WAIT_SECONDS
from clusterrun.system import Clock

# Seconds in which a coordinator ends its run after SIGKILL to its ranks.
AFTER_RANKS_SECONDS = 20.0
END_SECONDS = KILL_WAIT_SECONDS + AFTER_RANKS_SECONDS
PAUSE = 0.05
# Seconds of waiting before the user gets a message.
NOTICE_AFTER = 2.0


def identity(pid: int) -> str:
    """Return the job id of the live process ``pid``, '' if there is none. A zombie counts as ended."""
    process = proc.find_alive(pid)
    return f"{pid}.{process.started}" if process else ""


def alive(job_id: str) -> bool:
    pid = job_id.partition(".")[0]
    return pid.isdecimal() and identity(int(pid)) == job_id


def send(job_id: str, number: int) -> None:
    """Send a signal to the process, if it lives."""
    if alive(job_id):
        with suppress(ProcessLookupError):
            os.kill(int(job_id.partition(".")[0]), number)


def end(
    job_id: str, clock: Clock, limit: float = END_SECONDS, slow: Callable[[], None] = lambda: None
) -> bool:
    """End the coordinator. Return whether it is gone after at most ``limit`` + 2 seconds.

    A coordinator that ignores SIGTERM is killed. Its agents end the ranks when their lease expires.
    """
    patience = min(limit, NOTICE_AFTER)
    if _gone_after(job_id, clock, patience, signal.SIGTERM, signal.SIGCONT):
        return True
    slow()
    if _gone_after(job_id, clock, limit - patience):
        return True
    return _gone_after(job_id, clock, 2.0, signal.SIGKILL)


def _gone_after(job_id: str, clock: Clock, limit: float, *signals: signal.Signals) -> bool:
    until = clock.monotonic() + limit
    for number in signals:
        send(job_id, number)
    while alive(job_id):
        if clock.monotonic() > until:
            return False
        clock.sleep(PAUSE)
    return True
