"""Run small programs for the coordinator, each in a child with a time limit.

The coordinator does not wait for them. It acknowledges heartbeats while a scheduler does not answer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.phrases import code_in_words
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.kill_tree import below, send
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.slurm_text.controller_away import NO_ANSWER

# squeue prints a line of up to some 100 bytes for each job of the user.
_OUTPUT_BYTES = 16 * 1024 * 1024
_MOST_SHOWN = 500


@frozen
class CommandDone:
    """The end of a program."""

    code: int
    lines: tuple[str, ...]  # of its output
    why: str  # why it failed; empty if it succeeded


class CommandRunner:
    """Runs programs in the background, without this job's variables and the user's shell functions."""

    def __init__(self, loop: EventLoop, environment: Mapping[str, str]) -> None:
        self._loop = loop
        self._environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith((*contract.SCRUBBED_PREFIXES, "BASH_FUNC_"))
            or name in contract.KEPT_VARIABLES
        }
        self._out: dict[int, Callable[[int, bool], None]] = {}
        self._overdue: set[int] = set()
        self._put_off = 0

    def run(
        self,
        argv: tuple[str, ...],
        seconds: float,
        on_end: Callable[[CommandDone], None],
        more: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Start a program. Call ``on_end`` once, when it has ended or was killed after ``seconds``."""
        # A pipe that nobody reads would stop the program after 64 KiB.
        output = os.memfd_create("output")
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        environment = (*self._environment.items(), *more)
        try:
            # A program may ask why the job ends. It must survive the signal that ends the job.
            program = Program(argv, environment, "/", null, output, output, signal.SIGKILL, ignores_term=True)
            self.start(program, seconds, lambda code, late: on_end(_done(code, late, _all_of(output))))
        except NotStarted as error:
            os.close(output)
            on_end(CommandDone(127, (), error.seen))
        finally:
            os.close(null)

    def start(self, program: Program, seconds: float, ended: Callable[[int, bool], None]) -> None:
        """Start ``program`` as it is. Call ``ended`` with its exit code, and whether it exceeded its time.

        Raise ``NotStarted`` if it cannot be started.
        """
        (pid,) = start_all([program])
        self._out[pid] = ended
        self._loop.after(seconds, lambda: self._give_up(pid, ended))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Call ``what`` after ``seconds``. ``finish`` waits for it like for a running program."""

        def now() -> None:
            self._put_off -= 1
            what()

        self._put_off += 1
        self._loop.after(seconds, now)

    def _give_up(self, pid: int, ended: Callable[[int, bool], None]) -> None:
        if self._out.get(pid) is ended:
            self._overdue.add(pid)
            _kill(pid)

    def reaped(self, child: ProcessEnd) -> None:
        if child.pid in self._out:
            late = child.pid in self._overdue
            self._overdue.discard(child.pid)
            self._out.pop(child.pid)(child.code, late)

    def finish(self, seconds: float) -> None:
        until = steady() + seconds
        while (self._out or self._put_off) and steady() < until + 1.0:
            if steady() >= until:
                for pid in self._out:
                    _kill(pid)
            self._loop.wait(steady() + 0.1)


def _kill(pid: int) -> None:
    children = below(pid)
    # The program first: at the end of a child it might still end by itself, as if it had answered. It is not
    # reaped yet, so the number is still valid.
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # It has not started its own session yet.
        os.kill(pid, signal.SIGKILL)
    for process in children:
        send(process, signal.SIGKILL)


def _done(code: int, late: bool, lines: tuple[str, ...]) -> CommandDone:
    output = " / ".join(line for line in lines if line)[-_MOST_SHOWN:]
    failed = f"the program {code_in_words(code)}" + (f": {output}" if output else "") if code else ""
    return CommandDone(code, lines, NO_ANSWER if late else failed)


def _all_of(descriptor: int) -> tuple[str, ...]:
    try:
        return tuple(os.pread(descriptor, _OUTPUT_BYTES, 0).decode("utf-8", "backslashreplace").split("\n"))
    finally:
        os.close(descriptor)
