"""Tell from the kernel function in which a thread sleeps what it waits for; pure."""

from __future__ import annotations

import enum


class KernelWait(enum.Enum):
    """What a thread waits for, in words."""

    FULL_PIPE = "to write into a pipe that nobody empties"
    PIPE = "for data from a pipe"
    FIFO = "for the other end of a FIFO"
    TERMINAL = "for input from a terminal"
    CONNECTION = "for a connection from another process"
    PEER = "for a peer to read what it sends"
    FILE_LOCK = "for the lock of a file"
    PROCESS = "for the end of a process that it started"
    SIGNAL = "for a signal"
    SLEEP = "in a sleep"


# Waits that only another process ends.
ENDLESS = (KernelWait.FULL_PIPE, KernelWait.FIFO, KernelWait.FILE_LOCK)
# The beginnings of the functions' names.
_FUNCTIONS = {
    KernelWait.FULL_PIPE: ("pipe_write",),
    KernelWait.PIPE: ("pipe_",),
    KernelWait.FIFO: ("wait_for_partner", "fifo_open"),
    KernelWait.TERMINAL: ("n_tty_read",),
    KernelWait.CONNECTION: ("inet_csk_accept", "inet_csk_wait_for_connect"),
    KernelWait.PEER: ("sk_stream_wait_memory",),
    KernelWait.FILE_LOCK: ("locks_lock_inode", "flock_", "posix_lock", "do_lock_file", "fcntl_"),
    KernelWait.PROCESS: ("do_wait",),
    KernelWait.SIGNAL: ("sigsuspend", "do_sigtimedwait", "__do_sys_pause"),
    KernelWait.SLEEP: ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep"),
}


def kernel_wait(function: str) -> KernelWait | None:
    """Return what a thread waits for that sleeps in ``function``; None if that is unknown."""
    name = function.removeprefix("anon_")
    return next((wait for wait, names in _FUNCTIONS.items() if name.startswith(names)), None)
