"""Read the Python stacks of many processes with py-spy, within one time limit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.job_looks import NO_PYTHON, NOT_INSTALLED
from clusterrun.diagnosis.spied_process import SpiedProcess, read_spied
from clusterrun.diagnosis.stacks import ENDED_PYTHON
from clusterrun.monitor.external_tools import spy_dump, spy_program
from clusterrun.monitor.job_processes import within_limit

# Seconds for one answer of py-spy, which usually takes 0.02 s, or 0.2 s with native frames.
SPY_SECONDS = 8.0
# All stacks of a node are read within this time.
ALL_SPIES_SECONDS = 12.0
MOST_SPIES = 16
MOST_PIDS = 4
_SPY = "py-spy: "
_NONBLOCKING = ("--nonblocking", "--locals")
_NATIVE = ("--native", "--locals")
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
# The users that may read the stacks of a process, for each value of the setting that restricts it.
_SCOPES = {
    "1": "its ancestors or root only: an administrator sets it to 0",
    "2": "root only: an administrator sets it to 0",
    "3": "no process until the node restarts",
}
_DENIED = ("permission denied", "operation not permitted")
# py-spy's message about a program that is not Python, as the shell that will start torchrun.
_NO_PYTHON = "Failed to find python version"
# py-spy's message about a process whose interpreter has ended, and has not yet begun.
_NO_INTERPRETER = "Failed to find a python interpreter"
# py-spy's message if it may not stop a process, and the value of Seccomp in /proc/PID/status with a filter.
_NO_TRACES, _FILTERED = "Failed to get stack traces", "2"


class StackReader:
    """Read stacks with the py-spy beside a process's interpreter, or the one on ``path``.

    ``problem_by_pid`` has the reason for each process that could not be read the last time.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._until = time.monotonic() + ALL_SPIES_SECONDS
        self.problem_by_pid: dict[int, str] = {}

    @property
    def problems(self) -> list[str]:
        """Return the different reasons, and which processes py-spy could not read for another reason."""
        pids: dict[str, list[str]] = {}
        for pid, problem in self.problem_by_pid.items():
            pids.setdefault(problem, []).append(str(pid))
        pids.pop(NO_PYTHON, None)
        return [
            f"{problem}, for process {', '.join(pids[problem][:MOST_PIDS])}" if _SPY in problem else problem
            for problem in pids
        ]

    def read(self, pids: Sequence[int], native: bool = False) -> dict[int, SpiedProcess]:
        """Return the stacks of each process; an empty value if they could not be read.

        It reads as many processes at a time as there are processors. With ``native``, it stops each process
        while it reads the native frames too.
        """
        waiting, spied = list(reversed(pids)), {pid: SpiedProcess() for pid in pids}

        def work() -> None:
            while True:
                try:
                    pid = waiting.pop()
                except IndexError:
                    return
                spied[pid] = self._read_process(pid, native)

        count = min(len(pids), MOST_SPIES, max(2, os.cpu_count() or 1))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, self._until + SPY_SECONDS - time.monotonic()))
        return spied

    def _read_process(self, pid: int, native: bool) -> SpiedProcess:
        process = proc.find_alive(pid)
        seconds = min(SPY_SECONDS, self._until - time.monotonic())
        if process is None or seconds <= 0 or (process.stopped and native):
            return SpiedProcess()
        program = spy_program(pid, self._path)
        if not program:
            self.problem_by_pid[pid] = NOT_INSTALLED
            return SpiedProcess()
        text, problem = spy_dump(program, pid, _NATIVE if native else _NONBLOCKING, seconds)
        if _NO_INTERPRETER in problem and loads(pid, b"-packages/"):
            return SpiedProcess(main=(ENDED_PYTHON,))
        if not problem:
            self.problem_by_pid.pop(pid, None)
        elif proc.find_alive(pid) and (not native or is_denied(problem, pid)):  # else it has a stack
            self.problem_by_pid[pid] = _reason(problem, pid)
        return read_spied(text, thread_numbers(pid)) if text else SpiedProcess()


def _reason(problem: str, pid: int) -> str:
    """Return why py-spy, which reported ``problem``, could not read a process."""
    if _NO_PYTHON in problem:
        return NO_PYTHON
    return refusal(pid) if is_denied(problem, pid) else _SPY + problem.removeprefix("py-spy ")


def loads(pid: int, part: bytes) -> bool:
    """Return whether a process has loaded a library with ``part`` in its path."""
    return part in within_limit(lambda: proc.content(f"/proc/{pid}/maps"), b"")


def thread_numbers(pid: int) -> dict[int, int]:
    """Return the number of each thread of a process by its number in the process's own PID namespace."""
    if len(_status(pid).get("NSpid", "").split()) < 2:
        return {}
    numbers = {}
    with suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            inner = _status(thread).get("NSpid", "").split()
            if inner:
                numbers[int(inner[-1])] = thread
    return numbers


def is_denied(problem: str, pid: int) -> bool:
    """Return whether py-spy may not read or stop a process. It reports that in several ways."""
    if any(phrase in problem.lower() for phrase in _DENIED):
        return True
    if _status(os.getpid()).get("Seccomp") == _FILTERED and problem.startswith(_NO_TRACES):
        return True
    try:
        os.readlink(f"/proc/{pid}/exe")
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def refusal(pid: int) -> str:
    """Return which setting forbids to read the memory of another process of the same user."""
    with suppress(OSError):
        if os.stat(f"/proc/{pid}/environ").st_uid != os.getuid():
            return "the ranks belong to another user, or have changed their rights: they permit no look"
    scope = proc.text(_SCOPE).strip()
    if scope in _SCOPES:
        return f"kernel.yama.ptrace_scope is {scope} there, so stacks may be read by {_SCOPES[scope]}"
    status, own_status = _status(pid), _status(os.getpid())
    if int(status.get("CapPrm", "0"), 16) & ~int(own_status.get("CapPrm", "0"), 16):
        return "the ranks have more rights than this step, which lacks CAP_SYS_PTRACE (as in a container)"
    if own_status.get("Seccomp") == _FILTERED:
        return "a seccomp filter is active in this step (as in a container), and it forbids ptrace"
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user"):
            return (
                "the ranks run in a container of another user namespace, which forbids to read their stacks"
            )
    return "a security module (SELinux, AppArmor) or a container forbids ptrace there"


def _status(pid: int) -> dict[str, str]:
    lines = proc.text(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, sign, value in (line.partition(":") for line in lines) if sign}
