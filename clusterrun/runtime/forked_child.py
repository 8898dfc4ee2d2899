"""Forks a child that runs code of ours, in a session of its own, and is killed when this process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection

from clusterrun.runtime.processes import on_parents_death


def fork(body: Callable[[], None]) -> int:
    """Run ``body`` in a child, and end it with that, without unwinding into the code of this process.

    To be called from the main thread. Raises ``OSError`` if no process can be made.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            on_parents_death(parent, signal.SIGKILL)
            os.setsid()
            body()
            code = 0
        finally:
            os._exit(code)
    return pid


def close_all_but(kept: Collection[int]) -> None:
    """A child that lives on (in a D-state) must hold no port of ours, and no pipe of another child."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                pass
