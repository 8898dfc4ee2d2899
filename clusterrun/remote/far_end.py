"""End a remote command when its reader has ended, as closing a terminal would.

sshd does not report the end of a client that has no terminal. `logs -f` would run forever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

# Signals, and the seconds before each. A submission ends by itself before the first signal.
KILL_STEPS = (("INT", 5.0), ("TERM", 10.0), ("KILL", 10.0))


def supervise_child() -> None:
    """Fork. The parent waits for the child and exits with its code. Return only in the child."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(woken)
        os.close(wake)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: _send(child, got))
    os._exit(_code(child, woken))


def _code(child: int, woken: int) -> int:
    """Return the exit code of ``child``. End the child some time after its reader has ended."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    for stream in (1, 2):
        poll.register(stream, 0)  # report only errors: the reader has ended
    steps = list(KILL_STEPS)
    end = 0.0
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        wait = max(end - time.monotonic(), 0.0) * 1000 if end else None
        for handle, _ in poll.poll(wait):
            if handle == woken:
                os.read(woken, 4096)
                continue
            poll.unregister(handle)
            end = end or time.monotonic() + steps[0][1]
        if end and time.monotonic() >= end and steps:
            _send(child, getattr(signal, f"SIG{steps.pop(0)[0]}"))
            end = time.monotonic() + steps[0][1] if steps else 0.0


def _send(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
