"""Fork a child that writes lines to a pipe and cannot outlive this process.

The caller must fork from its main thread, and before it uses CUDA or a process group.
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
    """One forked child. Its libraries print to ``printed``, a descriptor of a file in memory."""

    def __init__(self, pid: int, output: int, printed: int) -> None:
        super().__init__(pid, output)
        self._printed = printed

    def printed(self) -> str:
        size = os.fstat(self._printed).st_size
        data = os.pread(self._printed, _MOST_OUTPUT, max(0, size - _MOST_OUTPUT))
        return data.decode("utf-8", "replace")

    def end(self) -> None:
        """Kill it and its session, and close its descriptors. ``printed`` is unusable afterwards."""
        if self._printed < 0:
            return
        if not self.gone():
            for end in (os.killpg, os.kill):  # Its session, and itself if it has none yet.
                with suppress(OSError):
                    end(self.pid, signal.SIGKILL)
        os.close(self.output)
        os.close(self._printed)
        self._printed, self.closed = -1, True

    def gone(self) -> bool:
        return self.code() is not None


def fork(body: Callable[[Callable[[str], None]], None], keep: Collection[int] = ()) -> ForkedRank:
    """Run ``body(say)`` in a child with a session of its own. ``keep`` are descriptors that it uses.

    The child has no input, and its prints go to memory. It ends with ``body``, without unwinding into the
    code of this process. Raise ``OSError`` if no process can be started.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    printed = os.memfd_create("output", os.MFD_CLOEXEC)

    def speak() -> None:
        # A peer must see the ports of other tests close.
        settle(printed, {writable, *keep})
        body(lambda line: write_all(writable, line.encode() + b"\n"))

    try:
        return ForkedRank(started(speak, readable, writable), readable, printed)
    except OSError:
        os.close(printed)
        raise


def await_lines(child: ForkedRank, seconds: float) -> list[bytes]:
    """Return the lines of a child until it ends or for ``seconds``. Then kill it."""
    lines: list[bytes] = []
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(child.output, select.POLLIN)
    while not child.closed and time.monotonic() < until:
        poll.poll(max(0.0, until - time.monotonic()) * 1000)
        lines += child.lines()
    child.end()
    return lines
