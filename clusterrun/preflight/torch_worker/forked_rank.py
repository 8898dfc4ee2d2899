"""A forked child that says lines over a pipe and cannot outlive this process; knows no torch and no test.

The process that forks must do so from its main thread, and before it touched CUDA or a process group.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection

from clusterrun.atomic_file import write_all
from clusterrun.runtime import forked_child

_MOST_OUTPUT = 256 * 1024


class ForkedRank:
    """One forked child: ``lines`` takes what it said, ``output`` what its libraries printed."""

    def __init__(self, pid: int, pipe: int, output: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.closed = False
        """It ended, or closed its pipe: nothing more will come."""
        self._output = output
        self._rest = b""
        self._reaped = False

    def lines(self) -> list[str]:
        """Whole lines that came since the last call; blocks never."""
        while not self.closed:
            try:
                data = os.read(self.pipe, 65536)
            except BlockingIOError:
                break
            self.closed = not data
            self._rest += data
        *whole, self._rest = self._rest.split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def output(self) -> str:
        """The end of what was printed on its stdout and stderr, by whatever library."""
        size = os.fstat(self._output).st_size
        data = os.pread(self._output, _MOST_OUTPUT, max(0, size - _MOST_OUTPUT))
        return data.decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill it and all of its session, and give its descriptors back; ``output`` is gone then."""
        if self._output < 0:
            return
        if not self.gone():
            for end in (os.killpg, os.kill):  # its session, and itself if it has none yet
                try:
                    end(self.pid, signal.SIGKILL)
                except OSError:
                    pass
        os.close(self.pipe)
        os.close(self._output)
        self._output, self.closed = -1, True

    def gone(self) -> bool:
        """Whether it has ended; it leaves the process table then. Blocks never."""
        if not self._reaped:
            self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return self._reaped


def fork(body: Callable[[Callable[[str], None]], None], keep: Collection[int] = ()) -> ForkedRank:
    """Run ``body(say)`` in a child with a session of its own; ``keep`` are descriptors that it uses.

    The child has no input, and what is printed there goes into memory. It ends with ``body``,
    without unwinding into the code of this process. Raises ``OSError`` where no process can be made.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    output = os.memfd_create("output", os.MFD_CLOEXEC)
    os.set_blocking(readable, False)

    def speak() -> None:
        _settle_descriptors(output, {writable, *keep})
        body(lambda line: write_all(writable, line.encode() + b"\n"))

    try:
        pid = forked_child.fork(speak)
    except OSError:
        os.close(readable)
        os.close(output)
        raise
    finally:
        os.close(writable)
    return ForkedRank(pid, readable, output)


def _settle_descriptors(output: int, keep: set[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    forked_child.close_all_but(keep)  # a peer must see ports of other tests close when they close


def await_lines(child: ForkedRank, seconds: float) -> list[str]:
    """All that a child says until it ends or ``seconds`` have passed; it is killed then."""
    said: list[str] = []
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(child.pipe, select.POLLIN)
    while not child.closed and time.monotonic() < until:
        poll.poll(max(0.0, until - time.monotonic()) * 1000)
        said += child.lines()
    child.kill()
    return said
