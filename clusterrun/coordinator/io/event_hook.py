"""Runs the user's own program for each event of a run, one after the other; decides nothing."""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping

from clusterrun.coordinator.actions import Announce
from clusterrun.model.frozen import Any
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.commands import CommandRunner
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.runtime.processes import NotStarted, Program
from clusterrun.runtime.run_files import log_or_nothing
from clusterrun.slurm_text.job_row import own_id

LIMIT_SECONDS = 60.0
# Waiting events get this long after the end of the run.
LAST_SECONDS = 10.0
_MOST_WAITING = 1000


class EventHook:
    """Runs the program. ``environment`` is the job's. A failure of the program is noted and ends no run."""

    def __init__(
        self,
        loop: EventLoop,
        orders: Orders,
        paths: RunPaths,
        environment: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self._loop, self._orders, self._paths, self._note = loop, orders, paths, note
        self._environment, self._job_id = tuple(environment.items()), own_id(environment)
        self._waiting: deque[Announce] = deque(maxlen=_MOST_WAITING)
        self._commands = CommandRunner(loop, environment)
        self.reaped = self._commands.reaped
        self._runs = False

    def announce(self, order: Announce) -> None:
        if self._orders.survival.on_event:
            self._waiting.append(order)
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._runs:
            try:
                self._start(self._waiting.popleft())
                self._runs = True
            except (NotStarted, OSError) as error:
                self._note(f"the program for events could not be started: {error}")

    def _start(self, order: Announce) -> None:
        facts = os.memfd_create("event")
        log = -1
        try:
            text = json.dumps(facts_of(order, self._orders.run_name, self._paths.run_dir, self._job_id))
            with open(facts, "wb", closefd=False) as file:
                file.write(text.encode() + b"\n")
            os.lseek(facts, 0, os.SEEK_SET)
            log = log_or_nothing(self._paths.attempt(order.state.epoch).hooks_log)
            argv = ("/bin/sh", "-c", self._orders.survival.on_event)
            cwd = self._orders.cwd if os.path.isdir(self._orders.cwd) else "/"
            program = Program(argv, self._environment, cwd, facts, log, log, death_signal=signal.SIGKILL)
            self._commands.start(program, LIMIT_SECONDS, self._ended)
        finally:
            for fd in (facts, log):
                if fd >= 0:
                    os.close(fd)

    def _ended(self, code: int, late: bool) -> None:
        if late:
            self._note(f"the program for events was killed: it ran for {LIMIT_SECONDS:g} s")
        elif code > 0:
            self._note(f"the program for events exited with code {code}; see hooks.log")
        self._runs = False
        self._next()

    def finish(self) -> None:
        self._loop.after(LAST_SECONDS, self._waiting.clear)
        self._commands.finish(LAST_SECONDS)


def facts_of(order: Announce, name: str, run_dir: str, job_id: str) -> dict[str, Any]:
    """Return the document for the program's standard input. Times are seconds since the epoch."""
    state = order.state
    attempt = state.attempts[-1] if state.attempts else None
    failure = attempt.failure if attempt else None
    return {
        "event": order.event,
        "run_id": state.run_id,
        "name": name,
        "job_id": job_id,
        "attempt": state.epoch,
        "state": state.state.value,
        "reason": state.reason,
        "nodes": attempt.nodes if attempt else (),
        "failure": {"rank": failure.rank, "node": failure.node, "why": failure.why} if failure else None,
        "run_dir": run_dir,
        "at": order.at,
    }
