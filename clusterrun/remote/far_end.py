"""Ends a remote command once its reader has gone, as closing a terminal would.

Without a terminal sshd does not report that the client is gone: `logs -f` would run forever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

KILL_STEPS = (("INT", 5.0), ("TERM", 10.0), ("KILL", 10.0))
"""What is sent after how many seconds: a submission comes to its end by itself before the first of them."""


def supervise_child() -> None:
    """Fork; the parent waits for the child and exits with its code. Returns in the child alone."""
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
    """The exit code of ``child``, which is ended some time after nobody reads its output."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    for stream in (1, 2):
        poll.register(stream, 0)  # an error alone: the reader is gone
    steps = list(KILL_STEPS)
    end = 0.0
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
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
