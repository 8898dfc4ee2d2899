"""Find the processes of a rank that get a signal, as plain srun sends it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from clusterrun import proc
from clusterrun.model import contract

# The number of the system call rt_sigtimedwait.
_SIGTIMEDWAIT = {"x86_64": b"128", "aarch64": b"137"}


def processes_handling(rank: proc.Process, number: int, per_node: bool = False) -> list[proc.Process]:
    """Return the rank if it handles a signal, and the programs below it that handle it.

    A program with a handler decides for the programs that it started. A shell, and a program without a
    handler such as ``timeout`` or ``time``, does not, so the programs below it are searched. A launcher
    (``per_node``) passes TERM and INT on to its ranks by itself.
    """
    handling: list[proc.Process] = []
    pending = [rank]
    while pending:
        process = pending.pop()
        is_handling = handles(process.pid, number)
        if is_handling:
            handling.append(process)
        if not is_handling or proc.is_shell(process.pid):
            pending += _programs_of(process, number)
    if per_node and number not in contract.TERMINATE_SIGNALS:
        launchers = {process.pid for process in (rank, *handling)}
        for process in [child for pid in launchers for child in proc.children(pid)]:
            is_rank = process.pid not in launchers and "LOCAL_RANK" in proc.environment(process.pid)
            if is_rank and handles(process.pid, number):
                handling.append(process)
    return handling


def shell_programs(ranks: Sequence[proc.Process]) -> list[proc.Process]:
    """Return the programs that ranks started which are shell scripts, as plain srun signals them.

    Processes that other programs start, such as data-loader workers, are not among them.
    """
    programs: list[proc.Process] = []
    shells = [process.pid for process in ranks if proc.is_shell(process.pid)]
    while shells:
        started = proc.children(shells.pop())
        programs += started
        shells += [process.pid for process in started if proc.is_shell(process.pid)]
    return programs


def handles(pid: int, number: int) -> bool:
    """Return whether ``pid`` has a handler for the signal or can wait for it (signalfd, sigwait).

    A program that waits blocks the signal in all of its threads. The signal cannot end it.
    """
    if proc.catches(pid, number):
        return True
    threads = [f"/proc/{pid}/task/{thread}" for thread in proc.listed(f"/proc/{pid}/task")]
    return bool(threads) and all(
        proc.in_mask(f"{thread}/status", b"SigBlk:", number) or _is_awaited(thread, number)
        for thread in threads
    )


def _is_awaited(thread: str, number: int) -> bool:
    """Return whether the thread is in sigwait for the signal. The kernel unblocks the signal meanwhile."""
    call = proc.content(f"{thread}/syscall").split()
    if call[:1] != [_SIGTIMEDWAIT.get(os.uname().machine)]:
        return False
    try:
        with open(f"{thread}/mem", "rb", buffering=0) as memory:
            memory.seek(int(call[1], 16))
            return bool(int.from_bytes(memory.read(8), sys.byteorder) >> (number - 1) & 1)
    except OSError:
        return False


def _programs_of(process: proc.Process, number: int) -> list[proc.Process]:
    """Return the programs that ``process`` started and that may get the signal.

    Python also starts helpers. Copies of itself, and services that are neither shells nor Python, are no
    programs. TERM passes to shells only: data-loader workers handle it, and would leave their rank behind.
    A process that ignores the signal leaves it to all processes below it.
    """
    started = proc.children(process.pid)
    if not proc.is_python(process.pid) or proc.in_mask(f"/proc/{process.pid}/status", b"SigIgn:", number):
        return started
    programs = []
    for child in started:
        is_copy = _stack_address(child.pid) == _stack_address(process.pid)
        is_script = proc.is_python(child.pid) and not is_copy
        if proc.is_shell(child.pid) or (is_script and number != signal.SIGTERM):
            programs.append(child)
    return programs


def _stack_address(pid: int) -> int:
    """Return where the stack begins, which a fork has in common with its parent until it starts a program.

    It is 0 if it may not be read.
    """
    fields = proc.content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[25]) if fields else 0
