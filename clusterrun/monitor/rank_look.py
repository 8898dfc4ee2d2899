"""The state of one rank at the beginning and at the end of a look."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.kernel_waits import KernelWait, kernel_wait
from clusterrun.diagnosis.spied_process import SpiedProcess
from clusterrun.diagnosis.stacks import ENDED_PYTHON, Doing, is_in_python, location
from clusterrun.model.frozen import frozen
from clusterrun.monitor.job_processes import RankProcess, within_limit
from clusterrun.monitor.process_sample import used


@frozen
class Moment:
    """A rank at the beginning of the look, or at its end, before py-spy may stop it."""

    # state, waits_in: of the thread that trains: the kernel's letter, '' if it is gone; the kernel function
    # that it sleeps in
    state: str
    waits_in: str
    used: float  # processor seconds of its process tree
    # switches, ran_at: of the thread that trains: how often it left a processor, and when it last ran on one,
    # in seconds of the kernel's clock; -1: unknown
    switches: int
    ran_at: float
    files: Mapping[str, int]
    output: tuple[int, float]  # where its standard output stood


class RankLook:
    """A rank during a look.

    ``before`` and ``after`` are its states at the beginning and at the end. ``first`` are its stacks at the
    beginning. ``second`` are those at the end; they are empty if they were not read.
    """

    def __init__(self, rank: RankProcess) -> None:
        self.rank, self.pid = rank, rank.pid
        self.before = self.after = moment_of(rank.pid)
        self.first = self.second = SpiedProcess()

    @property
    def last(self) -> SpiedProcess:
        """The last stacks that were read."""
        return self.second if self.second.main else self.first

    @property
    def is_still(self) -> bool:
        """Whether the thread that trains has not run during the look."""
        before, after = self.before, self.after
        return before.switches >= 0 and (before.switches, before.ran_at) == (after.switches, after.ran_at)

    @property
    def is_in_one_place(self) -> bool:
        """Whether both stacks show one place, and one step of the user's loops."""
        first, second = self.first, self.second
        return bool(first.main) and (first.main, first.counters) == (second.main, second.counters)

    @property
    def has_moved(self) -> bool:
        """Whether the thread that trains ran during the look, and came to another place."""
        both = bool(self.first.main and self.second.main)
        return both and not self.is_still and not self.is_in_one_place

    @property
    def may_be_in_torch(self) -> bool:
        """Whether its thread stands in user code, and may wait in native code that no Python frame shows."""
        stack = self.last.main
        if location(stack).doing is not Doing.USER or is_in_python(stack) or stack == (ENDED_PYTHON,):
            return False
        # A collective may wait for a peer's socket. In the other known functions none sleeps for a second.
        return not self.is_still or kernel_wait(self.after.waits_in) in (None, KernelWait.PEER)


def moment_of(pid: int, thread: int = 0) -> Moment:
    """Return the present state of ``thread`` of a process, by default of its main thread."""
    thread = thread or pid
    # /proc shows a thread as well, if its number is known.
    process = proc.find_alive(thread) or proc.find_alive(pid)
    return Moment(
        state=process.state if process else "",
        waits_in=proc.waiting_in(thread),
        used=used(pid),
        switches=switches(thread),
        ran_at=last_ran(thread),
        files=proc.written_files(pid),
        output=output(pid),
    )


def switches(pid: int) -> int:
    """Return how often the main thread has left a processor; -1 if that is unknown."""
    lines = proc.content(f"/proc/{pid}/task/{pid}/status").split(b"\n")
    counts = [int(line.split()[1]) for line in lines if b"voluntary_ctxt_switches:" in line]
    return sum(counts) if counts else -1


def last_ran(pid: int) -> float:
    """Return when the main thread last began to run, in seconds of the kernel's clock; -1 if unknown.

    The kernel sets the value to 0 when it moves a thread to another processor. Since Linux 6.12 it may move
    a thread that has just gone to sleep: then the time stays unknown.
    """
    for line in proc.content(f"/proc/{pid}/task/{pid}/sched").split(b"\n")[:8]:
        if line.startswith(b"se.exec_start"):
            with suppress(ValueError, IndexError):
                return float(line.split(b":")[1]) / 1000 or -1.0
    return -1.0


def kernel_time() -> float:
    """Return the present time of the clock of ``last_ran``: this thread runs now."""
    return last_ran(os.getpid())


def output(pid: int) -> tuple[int, float]:
    """Return how far a rank has written its standard output and error, and when the file last changed.

    A pipe or a terminal has no such time: 0.
    """
    position, changed = 0, 0.0
    for number in (1, 2):
        path = f"/proc/{pid}/fd/{number}"
        with suppress(OSError):
            target = os.readlink(path)
            if not target.startswith("/") or target.startswith(("/dev/", "/proc/")):
                continue
            status = within_limit(lambda path=path: os.stat(path), None)  # type: ignore[misc]
            if status is not None:
                position += status.st_size
                changed = max(changed, status.st_mtime)
    return position, changed
