"""The coordinator of a run on this machine, as a process: known by its id, alive or not, ended.

The job id of such a run is ``PID.START``, with the process's start in the kernel's ticks since
boot: a process id that was given out again is somebody else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from clusterrun import proc
from clusterrun.model.contract import KILL_WAIT_SECONDS
from clusterrun.system import Clock

AFTER_RANKS_SECONDS = 20.0
"""What a coordinator needs to end its run, beside the time that its ranks have from SIGTERM to SIGKILL."""
END_SECONDS = KILL_WAIT_SECONDS + AFTER_RANKS_SECONDS
PAUSE = 0.05
NOTICE_AFTER = 2.0
"""Seconds before a user who waits gets a message."""


def identity(pid: int) -> str:
    """The job id of the living process ``pid``; '' when there is none (a zombie has ended)."""
    process = proc.read(pid)
    if process is None or process.state in proc.GONE_STATES:
        return ""
    return f"{pid}.{process.started}"


def alive(job_id: str) -> bool:
    pid = job_id.partition(".")[0]
    return pid.isdecimal() and identity(int(pid)) == job_id


def end(
    job_id: str, clock: Clock, limit: float = END_SECONDS, slow: Callable[[], None] = lambda: None
) -> bool:
    """Ask the coordinator to end its run; whether it is gone after at most ``limit`` seconds and a little.

    One that does not end is killed: its agents then end the ranks when their lease runs out.
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
        if alive(job_id):
            with suppress(ProcessLookupError):
                os.kill(int(job_id.partition(".")[0]), number)
    while alive(job_id):
        if clock.monotonic() > until:
            return False
        clock.sleep(PAUSE)
    return True
