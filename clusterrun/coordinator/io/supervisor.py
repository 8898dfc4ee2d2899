"""The batch step's process: restarts a coordinator that was killed.

The job ends for the scheduler when this process ends. It is therefore tiny: it forks the coordinator before
anything large is loaded, passes signals on, and waits. A coordinator that is killed or crashes leaves agents,
which end with their lease, and a launcher, which this process ends. Then another coordinator takes the next
attempt; it does so at once if the job is being ended. It gets the time since which no lease was renewed.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.runtime.event_loop import steady
from clusterrun.runtime.processes import become_subreaper, ended_children, exit_with
from clusterrun.runtime.stderr import say

_MOST_RESTARTS = 3
_WITHIN_SECONDS = 600.0
_LONGEST_WAIT = 2.0
_LOOK_SECONDS = 0.05
# Wait this long for killed processes to end. The scheduler handles those in an uninterruptible wait.
_KILLED_SECONDS = 10.0
# How often a coordinator gives a sign of life.
LIFE_SECONDS = 5.0
# A coordinator that is silent for this long is killed. The time is longer than lease and kill, so its ranks
# are dead by then.
SILENT_SECONDS = 45.0
_RESTART_ALLOWED, _WELL, _LIVES = b"r", b".", b"a"


@frozen
class SupervisorNews:
    """The coordinator's end of the connection to its supervisor."""

    report_fd: int  # takes the coordinator's reports
    supervisor_fd: int  # readable when the supervisor has ended
    began: float  # when the job began (steady clock)
    dead_since: float | None = None  # when an earlier coordinator of the job was killed (steady clock)
    dead: int | None = None  # its process id

    def allow_restart(self) -> None:
        """Allow another coordinator if this one is killed."""
        self._report(_RESTART_ALLOWED)

    def lives(self) -> None:
        """Give a sign of life. After the first one the supervisor expects another each ``LIFE_SECONDS``."""
        self._report(_LIVES)

    def is_done(self) -> None:
        """Report that the exit code of this process is that of the run."""
        self._report(_WELL)

    def _report(self, message: bytes) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # the supervisor is suspended or has ended
            os.write(self.report_fd, message)


def under_supervisor(coordinate: Callable[[SupervisorNews], int]) -> int:
    """Run ``coordinate`` in a child and guard it. Return the exit code of the batch step.

    The signals that are passed on stay blocked in the child until it unblocks them.
    """
    become_subreaper()
    return _Supervisor(coordinate).run()


class _Supervisor:
    """The coordinating process, its reports, and the signals that wait for its successor."""

    def __init__(self, coordinate: Callable[[SupervisorNews], int]) -> None:
        self._coordinate = coordinate
        self._began = steady()
        self._report_reader, self._report_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._gone, self._living = os.pipe2(os.O_CLOEXEC)
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pid = 0
        self._code: int | None = None
        self._reports = b""
        self._waiting: list[int] = []
        self._restarts: list[float] = []
        self._dead_since: float | None = None
        self._dead: int | None = None
        self._life_at: float | None = None
        self._looked_at = steady()

    def run(self) -> int:
        while True:
            self._begin()
            while self._code is None:
                self._wait(_LONGEST_WAIT)
                self._hear()
                self._look()
            self._hear()
            if _WELL in self._reports:
                self._clear(steady())
                return self._code or 0
            self._dead_since, self._dead = steady(), self._pid
            now = steady()
            self._restarts = [at for at in self._restarts if now - at < _WITHIN_SECONDS] + [now]
            may_restart = _RESTART_ALLOWED in self._reports and len(self._restarts) <= _MOST_RESTARTS
            if self._code is not None and self._code < 0:
                end = f"was killed by {signal.Signals(-self._code).name}"
            else:
                end = f"ended with code {self._code} before the run did"
            say(f"clusterrun: the coordinator {end}" + ", another one is begun" * may_restart)
            for pid in _children_of(os.getpid()):  # not reaped yet, so the process ids are still valid
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)
            self._clear(self._dead_since + contract.LEASE_SECONDS + contract.KILL_SECONDS, may_restart)
            if not may_restart:
                code = self._code or 1
                if code < 0:
                    if -code in contract.OUTSIDE_SIGNALS:
                        signal.signal(-code, signal.SIG_DFL)
                    os.kill(os.getpid(), -code)
                return code if code > 0 else 128 - code

    def _begin(self) -> None:
        self._code, self._reports, self._life_at = None, b"", None
        # A signal that comes before the coordinator listens stays pending, in this process and in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, contract.OUTSIDE_SIGNALS)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for number in (*contract.OUTSIDE_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._pid = os.fork()
        if self._pid == 0:
            exit_with(self._become_coordinator)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, contract.OUTSIDE_SIGNALS)
        for waiting in self._waiting:
            os.kill(self._pid, waiting)
        self._waiting.clear()

    def _become_coordinator(self) -> int:
        """Run the coordinator in the child and return its exit code."""
        signal.set_wakeup_fd(-1)
        for number in (*contract.OUTSIDE_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in (self._report_reader, self._living, self._woken, self._wakes):
            os.close(fd)
        news = SupervisorNews(self._report_writer, self._gone, self._began, self._dead_since, self._dead)
        code = self._coordinate(news)
        news.is_done()
        return code

    def _look(self) -> None:
        """Kill a coordinator that gives no sign of life. It may be stopped, or hang in a file system."""
        now, looked_at = steady(), self._looked_at
        self._looked_at = now
        if self._life_at is None or self._code is not None:
            return
        if now - looked_at > 2 * _LONGEST_WAIT:
            self._life_at = now  # this process was suspended too, like the whole job
        elif now - self._life_at > SILENT_SECONDS:
            say(f"clusterrun: the coordinator gave no sign of life for {SILENT_SECONDS:g} s: it is killed")
            self._life_at = None
            os.kill(self._pid, signal.SIGKILL)

    def _wait(self, seconds: float) -> None:
        if select.select([self._woken], [], [], seconds)[0]:
            for number in os.read(self._woken, 4096):
                if number in contract.OUTSIDE_SIGNALS and self._code is None:
                    os.kill(self._pid, number)
                elif number in contract.OUTSIDE_SIGNALS:
                    self._waiting.append(number)
        for child in ended_children():
            if child.pid == self._pid:
                self._code = child.code

    def _hear(self) -> None:
        try:
            data = os.read(self._report_reader, 4096)
        except BlockingIOError:
            return
        if _LIVES in data:
            self._life_at = steady()
        self._reports += data.replace(_LIVES, b"")

    def _clear(self, until: float, hurried: bool = False) -> None:
        """Wait until ``until`` for the remaining children to end, then kill them. The time is bounded.

        ``hurried``: return at once if a signal waits for the next coordinator.
        """
        while _children_of(os.getpid()) and steady() < until:
            if hurried and self._waiting:
                return
            self._wait(_LOOK_SECONDS)
        until = max(steady(), until) + _KILLED_SECONDS
        while steady() < until and (children := _children_of(os.getpid())):
            for pid in children:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the process id is still valid
            self._wait(_LOOK_SECONDS)


def _children_of(pid: int) -> list[int]:
    """Return the children of a single-threaded process. Orphans below a subreaper become its children."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
