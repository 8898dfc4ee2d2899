"""A forked child that says lines over a pipe and cannot outlive this process; knows no torch and no test.

The process that forks must do so from its main thread, and before it touched CUDA or a process group.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from clusterrun.atomic_file import write_all
from clusterrun.preflight.node.forked_call import ForkedCall, settle, started

_MOST_OUTPUT = 256 * 1024


class ForkedRank(ForkedCall):
    """One forked child; what its libraries print goes to ``printed``, a descriptor of a file in memory."""

    def __init__(self, pid: int, output: int, printed: int) -> None:
        super().__init__(pid, output)
        self._printed = printed

    def printed(self) -> str:
        size = os.fstat(self._printed).st_size
        data = os.pread(self._printed, _MOST_OUTPUT, max(0, size - _MOST_OUTPUT))
        return data.decode("utf-8", "replace")

    def end(self) -> None:
        """Kill it and all of its session, and give its descriptors back; ``printed`` is gone then."""
        if self._printed < 0:
            return
        if not self.gone():
            for end in (os.killpg, os.kill):  # its session, and itself if it has none yet
                with suppress(OSError):
                    end(self.pid, signal.SIGKILL)
        os.close(self.output)
        os.close(self._printed)
        self._printed, self.closed = -1, True

    def gone(self) -> bool:
        return self.code() is not None


def fork(body: Callable[[Callable[[str], None]], None], keep: Collection[int] = ()) -> ForkedRank:
    """Run ``body(say)`` in a child with a session of its own; ``keep`` are descriptors that it uses.

    The child has no input, and what is printed there goes into memory. It ends with ``body``,
    without unwinding into the code of this process. Raises ``OSError`` if no process can be made.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    printed = os.memfd_create("output", os.MFD_CLOEXEC)

    def speak() -> None:
        settle(printed, {writable, *keep})  # a peer must see ports of other tests close when they close
        body(lambda line: write_all(writable, line.encode() + b"\n"))

    try:
        return ForkedRank(started(speak, readable, writable), readable, printed)
    except OSError:
        os.close(printed)
        raise


def await_lines(child: ForkedRank, seconds: float) -> list[bytes]:
    """All that a child says until it ends or ``seconds`` have passed; it is killed then."""
    said: list[bytes] = []
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(child.output, select.POLLIN)
    while not child.closed and time.monotonic() < until:
        poll.poll(max(0.0, until - time.monotonic()) * 1000)
        said += child.lines()
    child.end()
    return said
