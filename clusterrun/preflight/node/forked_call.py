"""Forks what may hang, and ends it at its limit without waiting for it; knows no check and no task."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from clusterrun import proc
from clusterrun.atomic_file import write_all
from clusterrun.runtime.processes import close_all_but, fork

_MOST_BYTES = 600_000
_PIECE = 65536


class ForkedCall:
    """A process of ours in a session of its own; ``output`` never blocks, ``until`` is a steady time."""

    def __init__(self, pid: int, output: int, until: float = float("inf")) -> None:
        self.pid, self.output, self.until = pid, output, until
        self.began = time.monotonic()
        self.closed = False
        self._half = b""
        self._code: int | None = None

    def lines(self) -> list[bytes]:
        """The whole lines that came since the last time; ``closed`` is set once no more can come."""
        if self.closed:
            return []
        try:
            data = os.read(self.output, _PIECE)
        except BlockingIOError:
            return []
        if not data or len(self._half) > _MOST_BYTES:
            self.closed = True
        *whole, self._half = (self._half + data).split(b"\n")
        return whole

    @property
    def rest(self) -> str:
        return self._half.decode("utf-8", "replace")

    def seconds_without_processor(self) -> float:
        """Return how long it or a process below it waited for a processor, whichever is longest."""
        return max(map(proc.seconds_without_processor, _family(self.pid)))

    def kill(self) -> str:
        """Kill it and all below it; what that was doing, in words. Never waits: a D-state cannot be ended."""
        family = _family(self.pid)
        words = ", ".join(proc.described(one) for one in map(proc.read, family[-2:]) if one)
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        return words

    def code(self) -> int | None:
        """What it exited with (negative: the signal that ended it); None while it lives."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid:
                self._code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self._code

    def leave(self, watch: Callable[..., None]) -> None:
        """Its output is watched no more."""
        watch(self.output, 0, lambda _: None)
        os.close(self.output)
        self.code()


def call(work: Callable[[], Iterable[object]], seconds: float) -> ForkedCall:
    """Fork a child that writes each value of ``work()`` as one line of JSON: ``{"value": …}``.

    What it raises is a last line ``{"why": …}``. Raises ``OSError`` if no process can be made.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    pid = started(lambda: _make(work, writable), readable, writable)
    return ForkedCall(pid, readable, time.monotonic() + seconds)


def execute(argv: Sequence[str], environment: Mapping[str, str], cwd: str) -> tuple[ForkedCall, int]:
    """Start a program; its output is the child's, the descriptor is its input. Raises ``OSError``."""
    given, to_give = os.pipe2(os.O_CLOEXEC)
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        pid = started(lambda: _become(argv, environment, cwd, given, writable), readable, writable)
    except OSError:
        os.close(to_give)
        raise
    finally:
        os.close(given)
    return ForkedCall(pid, readable), to_give


def started(body: Callable[[], None], readable: int, writable: int) -> int:
    """A child that writes to one end of a pipe, and we read the other one, without waiting for it."""
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
    """In the child. What the work prints goes to the log."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        settle(2, (output,))
        for value in work():
            write_all(output, json.dumps({"value": value}).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001 (a probe may raise anything: that is its answer)
        why = f"{type(error).__name__}: {error}"[:500]
        write_all(output, json.dumps({"why": why}).encode() + b"\n")


def settle(printed: int, kept: Collection[int]) -> None:
    """In a child: give it no input, let it print to ``printed``, and close all but what it uses."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    close_all_but(kept)


def _become(argv: Sequence[str], environment: Mapping[str, str], cwd: str, given: int, output: int) -> None:
    """In the child: become the program. Never returns. A failure is the output's last, half line."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(given, 0)
        os.dup2(output, 1)
        try:
            os.chdir(cwd)
        except OSError:  # that the ranks' folder is missing is for a check to say
            pass
        os.execvpe(argv[0], list(argv), dict(environment))
    except BaseException as error:  # noqa: BLE001 (nothing may unwind into the parent's code)
        os.write(1, f"{argv[0]}: {error}".encode("utf-8", "replace")[:400])
    finally:
        sys.stderr.flush()
        os._exit(127)


def _family(root: int) -> list[int]:
    """``root``, all below it and all in its session, parents first."""
    table = {process.pid: process for process in proc.processes()}
    found = [root]
    for pid in found:
        for other, process in table.items():
            if (process.parent == pid or process.session == root) and other not in found:
                found.append(other)
    return found
