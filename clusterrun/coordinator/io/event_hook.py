"""Runs the user's own program with the news of a run, one piece after the other; decides nothing."""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from clusterrun.coordinator.actions import Announce
from clusterrun.model.frozen import Any
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.kill_tree import below, send
from clusterrun.runtime.processes import NotStarted, ProcessEnd, Program, start_all
from clusterrun.runtime.run_files import log_or_nothing
from clusterrun.slurm_text.job_row import own_id

LIMIT_SECONDS = 60.0
LAST_SECONDS = 10.0
"""For what is still to be told when the run is over."""
_MOST_WAITING = 1000


class EventHook:
    """``environment`` is the job's. What cannot be told costs a note, never a run."""

    def __init__(
        self,
        loop: EventLoop,
        orders: Orders,
        paths: RunPaths,
        environment: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self._loop, self._orders, self._paths = loop, orders, paths
        self._environment = tuple(environment.items())
        self._job_id = own_id(environment)
        self._note = note
        self._waiting: deque[Announce] = deque(maxlen=_MOST_WAITING)
        self._pid = 0

    def announce(self, order: Announce) -> None:
        """Tell it as soon as what came before is told."""
        if self._orders.survival.on_event:
            self._waiting.append(order)
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._pid:
            order = self._waiting.popleft()
            try:
                self._pid = self._start(order)
            except (NotStarted, OSError) as error:
                self._note(f"the program for events could not be started: {error}")
                continue
            self._loop.after(LIMIT_SECONDS, partial(self._give_up, self._pid))

    def _start(self, order: Announce) -> int:
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
            return start_all([program])[0]
        finally:
            for fd in (facts, log):
                if fd >= 0:
                    os.close(fd)

    def _give_up(self, pid: int) -> None:
        if self._pid == pid:
            self._note(f"the program for events was killed: it ran for {LIMIT_SECONDS:g} s")
            self._kill()

    def _kill(self) -> None:
        for process in below(self._pid):
            send(process, signal.SIGKILL)
        os.killpg(self._pid, signal.SIGKILL)  # not reaped yet, and it leads its session

    def reaped(self, child: ProcessEnd) -> None:
        if self._pid and child.pid == self._pid:
            if child.code > 0:
                self._note(f"the program for events exited with code {child.code}; see hooks.log")
            self._pid = 0
            self._next()

    def finish(self) -> None:
        """Tell what is still to be told, within a bounded time."""
        until = steady() + LAST_SECONDS
        while self._pid and steady() < until + 1.0:
            if steady() >= until:
                self._waiting.clear()
                self._kill()
            self._loop.wait(steady() + 0.05)


def facts_of(order: Announce, name: str, run_dir: str, job_id: str) -> dict[str, Any]:
    """What stands on the program's standard input, as JSON; times are seconds since the epoch."""
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
