"""The first process on a node: outlives the agent and kills all processes of the run when the lease runs out.

It is the task that Slurm started. It forks the agent, learns from it how long this node may live, and reaps
orphans. It kills its descendants and all processes with the run's mark when the lease runs out or the agent
ends, even if the agent is frozen. If this process itself was suspended until the lease was over (a suspended
job, a machine that slept), it stops these processes instead. It kills them if no new lease arrives within
``contract.AWAKE_SECONDS``. It loads few modules, because it must still work when memory is short.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress

from clusterrun import proc
from clusterrun.model import contract
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.kill_tree import KillTarget, below, everywhere, send, sweep
from clusterrun.runtime.machine_events import OVERSLEPT_SECONDS
from clusterrun.runtime.processes import become_subreaper, ended_children, exit_with
from clusterrun.runtime.stderr import say

_ANY_EPOCH = 10**9
_LONGEST_WAIT = 2.0
# Used while all processes are stopped. A scheduler that resumes a job sends CONT to one process after
# another.
_STOPPED_LOOK_SECONDS = 0.1


def under_shim(node: str, agent: Callable[[int, int], int]) -> int:
    """Run ``agent(lease, shim)`` in a child, guard it, and return the exit code of this task.

    ``lease`` takes lines: ``run RUN_ID`` when ranks are started, ``until SECONDS`` (steady clock) at each
    renewal. ``shim`` is readable when this process has ended.
    """
    become_subreaper()
    heard, lease = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    shim, living = os.pipe2(os.O_CLOEXEC)
    # Signals are blocked until the guard listens. An earlier signal would end only the shim.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, contract.OUTSIDE_SIGNALS)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(heard)
        os.close(living)
        become_subreaper()
        exit_with(lambda: agent(lease, shim))
    os.close(lease)
    os.close(shim)
    guard = _Guard(node, pid, heard)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return guard.run()


class _Guard:
    """The state of the shim: the agent's process, the end of its lease, and the run's id."""

    def __init__(self, node: str, agent: int, heard: int) -> None:
        self._node, self._agent, self._heard = node, agent, heard
        self._started = steady()
        self._until = self._started + contract.JOIN_SECONDS + contract.LEASE_SECONDS
        self._run_id = ""
        self._code: int | None = None
        self._stopped: dict[int, proc.Process] | None = None
        self._half = b""
        self._woken, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        for number in (*contract.OUTSIDE_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def run(self) -> int:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._heard, select.POLLIN)
        self._reap()
        looked = self._started
        while self._code is None and looked < self._until:
            # The kernel's wait does not count the time that a machine sleeps, but the lease does. The time
            # between two looks counts, because this process may have been suspended at any point.
            longest = _LONGEST_WAIT if self._stopped is None else _STOPPED_LOOK_SECONDS
            seconds = max(0.0, min(longest, self._until - steady()))
            ready = poll.poll(int(1000 * seconds) + 1)
            now = steady()
            self._stop(now - looked - seconds)
            looked = now if self._stopped is None else steady()  # stopping them takes its time
            for fd, _ in ready:
                if fd == self._woken:
                    for number in os.read(self._woken, 4096):
                        if number in contract.OUTSIDE_SIGNALS and self._code is None:
                            os.kill(self._agent, number)
                    self._reap()
                elif not self._listen():
                    poll.unregister(fd)
        return self._end()

    def _stop(self, late: float) -> None:
        """Stop all processes except the agent if this process slept until the lease was almost over."""
        now = steady()
        if late > OVERSLEPT_SECONDS and self._until < now + contract.AWAKE_SECONDS:
            self._until = now + contract.AWAKE_SECONDS
            self._stopped = self._stopped or {}
            say(f"{self._node}: this node stood still for {late:.0f} s: its ranks wait for the coordinator")
        if self._stopped is None:
            return
        for process in self._everywhere():
            if process.pid != self._agent and not process.stopped:
                send(process, signal.SIGSTOP)
                self._stopped[process.pid] = process

    def _renew(self, until: float) -> None:
        if self._stopped is not None:
            if until <= steady():
                return  # sent before this process was suspended
            for process in self._stopped.values():
                send(process, signal.SIGCONT)
            self._stopped = None
        self._until = until

    def _listen(self) -> bool:
        data = os.read(self._heard, 65536)
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            if word == "until":
                self._renew(float(value))
            elif word == "run":
                self._run_id = value
        return bool(data)

    def _reap(self) -> None:
        for child in ended_children():
            if child.pid == self._agent:
                self._code = child.code

    def _end(self) -> int:
        """Kill the remaining processes. An agent that exited 0 has already searched the whole node."""
        code = self._code  # the sweep below also ends an agent that lives
        with suppress(BlockingIOError):
            self._listen()  # its last line may not have been read yet
        if code is None:
            say(f"{self._node}: the lease ran out; all processes of the run on this node are killed")
        find = self._everywhere if code != 0 else lambda: below(os.getpid())
        stuck = sweep(find, self._reap, contract.KILL_SECONDS)
        for process in stuck:
            say(f"{self._node}: process {process} cannot be killed")
        if code is None or stuck:
            return 1
        return code if code >= 0 else 128 - code

    def _everywhere(self) -> list[proc.Process]:
        target = KillTarget(self._run_id, _ANY_EPOCH, self._node)
        return everywhere(target) if self._run_id else below(os.getpid())
