"""Queues the run anew by the program that was ordered, and hears its answer; decides nothing."""

from __future__ import annotations

import os
import signal

from clusterrun.agent.process import Ended, NotStarted, Program, start_all
from clusterrun.agent.verdict import code_in_words
from clusterrun.model import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterrun.agent.loop import Loop

_MOST_SAID = 64 * 1024
_PATIENCE_SECONDS = 100.0
"""A scheduler under load takes its time; whoever waits for the answer waits a little longer still."""


class Succession:
    """``told(job_id, why)`` is called once for each ``begin``: the new job's number, or why there is none."""

    def __init__(self, loop: Loop, environment: Mapping[str, str], told: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._environment = {
            name: value
            for name, value in environment.items()
            if not name.startswith(contract.SCRUBBED_PREFIXES) or name in contract.KEPT_VARIABLES
        }
        self._told = told
        self._pid = 0
        self._words = -1

    def begin(self, argv: tuple[str, ...]) -> None:
        """Start the program. It steers by its arguments alone: nothing of this job is in its environment."""
        self._words, said = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        own = tuple(self._environment.items())
        program = Program(argv, own, "/", null, said, said, death_signal=signal.SIGTERM)
        try:
            self._pid = start_all([program])[0]
        except NotStarted as error:
            self._answer("", error.seen)
            return
        finally:
            os.close(null)
            os.close(said)
        pid = self._pid
        self._loop.after(_PATIENCE_SECONDS, lambda: self._give_up(pid))

    def _give_up(self, pid: int) -> None:
        if self._pid == pid:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def reaped(self, child: Ended) -> None:
        """A child of this process ended."""
        if child.pid != self._pid:
            return
        self._pid = 0
        os.set_blocking(self._words, False)
        try:
            said = os.read(self._words, _MOST_SAID).decode("utf-8", "backslashreplace").split("\n")
        except BlockingIOError:
            said = []
        # As sbatch --parsable says it: the number, and the cluster after a semicolon.
        numbers = [line.partition(";")[0] for line in said if line.partition(";")[0].isdecimal()]
        if child.code == 0 and numbers:
            self._answer(numbers[-1], "")
        else:
            words = " / ".join(line for line in said if line)[-500:]
            self._answer("", f"the program {code_in_words(child.code)}" + (f": {words}" if words else ""))

    def _answer(self, job_id: str, why: str) -> None:
        os.close(self._words)
        self._told(job_id, why)
