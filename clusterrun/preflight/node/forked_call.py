"""Fork work that may hang, and end it at its limit without waiting for it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.atomic_file import write_all
from clusterrun.runtime.processes import close_all_but, fork

_MOST_BYTES = 600_000
_PIECE = 65536


class ForkedCall:
    """A child process in a session of its own. ``output`` never blocks. ``until`` is a monotonic time."""

    def __init__(self, pid: int, output: int, until: float = float("inf")) -> None:
        self.pid, self.output, self.until = pid, output, until
        self.began = time.monotonic()
        self.closed = False
        self._half = b""
        self._code: int | None = None

    def lines(self) -> list[bytes]:
        """Return the complete lines since the last call. Set ``closed`` if no more can arrive."""
        if self.closed:
            return []
        try:
            data = os.read(self.output, _PIECE)
        except BlockingIOError:
            return []
        if not data or len(self._half) > _MOST_BYTES:
            self.closed = True
        *whole_lines, self._half = (self._half + data).split(b"\n")
        return whole_lines

    @property
    def rest(self) -> str:
        return self._half.decode("utf-8", "replace")

    def seconds_without_processor(self) -> float:
        """Return how long it or a process below it waited for a processor, whichever is longest."""
        return max(map(proc.seconds_without_processor, _family(self.pid)))

    def kill(self) -> str:
        """Kill it and its descendants without waiting. Return a description of their activity."""
        family = _family(self.pid)
        activity = ", ".join(proc.described(process) for process in map(proc.find, family[-2:]) if process)
        for pid in family:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return activity

    def code(self) -> int | None:
        """Return its exit code (negative: the signal that ended it), or None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid:
                self._code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self._code

    def leave(self, watch: Callable[..., None]) -> None:
        """Stop watching its output and close it."""
        watch(self.output, 0, lambda _: None)
        os.close(self.output)
        self.code()


def call(work: Callable[[], Iterable[object]], seconds: float) -> ForkedCall:
    """Fork a child that writes each value of ``work()`` as one line of JSON: ``{"value": …}``.

    An exception becomes a last line ``{"why": …}``. Raise ``OSError`` if no process can be started.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    pid = started(lambda: _make(work, writable), readable, writable)
    return ForkedCall(pid, readable, time.monotonic() + seconds)


def execute(argv: Sequence[str], environment: Mapping[str, str], cwd: str) -> tuple[ForkedCall, int]:
    """Start a program. Return its process and the descriptor of its input. Raise ``OSError`` on failure."""
    child_input, our_end = os.pipe2(os.O_CLOEXEC)
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        pid = started(lambda: _become(argv, environment, cwd, child_input, writable), readable, writable)
    except OSError:
        os.close(our_end)
        raise
    finally:
        os.close(child_input)
    return ForkedCall(pid, readable), our_end


def started(body: Callable[[], None], readable: int, writable: int) -> int:
    """Start a child that writes to one end of a pipe, and prepare the other end for reads without waiting."""
    try:
        pid = fork(body)
    except OSError:
        os.close(readable)
        raise
    finally:
        os.close(writable)
    os.set_blocking(readable, False)
    return pid


def _make(work: Callable[[], Iterable[object]], output: int) -> None:
    """Do the work in the child. Its prints go to the log."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        settle(2, (output,))
        for value in work():
            write_all(output, json.dumps({"value": value}).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001 (any exception of a probe is its answer)
        why = f"{type(error).__name__}: {error}"[:500]
        write_all(output, json.dumps({"why": why}).encode() + b"\n")


def settle(printed: int, descriptors: Collection[int]) -> None:
    """Give this child no input, redirect its prints to ``printed``, and close all other descriptors."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    close_all_but(descriptors)


def _become(
    argv: Sequence[str], environment: Mapping[str, str], cwd: str, child_input: int, output: int
) -> None:
    """Become the program, in the child. Never return. A failure becomes an incomplete last line."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(child_input, 0)
        os.dup2(output, 1)
        with suppress(OSError):  # A check reports a missing folder of the ranks.
            os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(environment))
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the parent's code)
        os.write(1, f"{argv[0]}: {error}".encode("utf-8", "replace")[:400])
    finally:
        sys.stderr.flush()
        os._exit(127)


def _family(root: int) -> list[int]:
    """Return ``root``, its descendants and all processes of its session, parents first."""
    table = {process.pid: process for process in proc.processes()}
    family = [root]
    for pid in family:
        for other, process in table.items():
            if (process.parent == pid or process.session == root) and other not in family:
                family.append(other)
    return family
