"""Runs small programs for the coordinator, each in a child and within a limit.

Nothing waits for them: beats are acknowledged while a scheduler does not answer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.exit_status import code_in_words
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.slurm_text.controller_away import NO_ANSWER

_MOST_SAID = 64 * 1024
_MOST_SHOWN = 500


@frozen
class CommandDone:
    """How an errand ended; ``why`` is empty where it went well, ``lines`` are all it said."""

    code: int
    lines: tuple[str, ...]
    why: str


class CommandRunner:
    """Programs under way. They steer by their arguments: nothing of this job is in their environment."""

    def __init__(self, loop: EventLoop, environment: Mapping[str, str]) -> None:
        self._loop = loop
        self._environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith(contract.SCRUBBED_PREFIXES) or name in contract.KEPT_VARIABLES
        }
        self._out: dict[int, tuple[int, Callable[[CommandDone], None]]] = {}
        self._overdue: set[int] = set()
        self._put_off = 0

    def run(
        self,
        argv: tuple[str, ...],
        seconds: float,
        done: Callable[[CommandDone], None],
        more: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Start a program; ``done`` is called once, when it has ended or was killed after ``seconds``."""
        words, said = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        own = (*self._environment.items(), *more)
        try:
            # Asked why a job is ended, it must not be ended as a part of the job.
            program = Program(argv, own, "/", null, said, said, death_signal=signal.SIGKILL, deaf=True)
            (pid,) = start_all([program])
        except NotStarted as error:
            os.close(words)
            done(CommandDone(127, (), error.seen))
            return
        finally:
            os.close(null)
            os.close(said)
        self._out[pid] = words, done
        self._loop.after(seconds, lambda: self._give_up(pid, words))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """``what`` runs something in so many seconds; until then that is under way too."""

        def now() -> None:
            self._put_off -= 1
            what()

        self._put_off += 1
        self._loop.after(seconds, now)

    def _give_up(self, pid: int, words: int) -> None:
        if self._out.get(pid, (-1,))[0] == words:
            self._overdue.add(pid)
            _kill(pid)

    def reaped(self, child: ProcessEnd) -> None:
        if child.pid not in self._out:
            return
        words, done = self._out.pop(child.pid)
        lines = _all_of(words)
        said = " / ".join(line for line in lines if line)[-_MOST_SHOWN:]
        why = ""
        if child.pid in self._overdue:
            self._overdue.discard(child.pid)
            why = NO_ANSWER
        elif child.code:
            why = f"the program {code_in_words(child.code)}" + (f": {said}" if said else "")
        done(CommandDone(child.code, lines, why))

    def finish(self, seconds: float) -> None:
        """Wait for those that are under way, and kill them when the time is up."""
        until = steady() + seconds
        while (self._out or self._put_off) and steady() < until + 1.0:
            if steady() >= until:
                for pid in self._out:
                    _kill(pid)
            self._loop.wait(steady() + 0.1)


def _kill(pid: int) -> None:
    # Not reaped yet, so the number is still its own; it leads a session, so all it started are in its group.
    os.killpg(pid, signal.SIGKILL)


def _all_of(words: int) -> tuple[str, ...]:
    os.set_blocking(words, False)
    try:
        return tuple(os.read(words, _MOST_SAID).decode("utf-8", "backslashreplace").split("\n"))
    except BlockingIOError:
        return ()
    finally:
        os.close(words)
