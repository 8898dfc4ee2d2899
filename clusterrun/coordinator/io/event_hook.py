"""Tell the user of each event of a run: by a program of the user's, and by messages; decides nothing.

The program gets one event after the other. Messages are sent at once, each batch by a process of its own. A
server that does not answer delays neither the coordinator nor the next message.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping

from clusterrun.coordinator.actions import Announce
from clusterrun.model.frozen import Any
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.phrases import code_in_words
from clusterrun.notify.event_message import ENDED, event_document, is_for_people
from clusterrun.runtime.commands import CommandRunner
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.runtime.processes import NotStarted, Program
from clusterrun.runtime.run_files import log_or_nothing
from clusterrun.slurm_text.job_row import own_id

LIMIT_SECONDS = 60.0
# Waiting events get this long after the end of the run.
LAST_SECONDS = 10.0
# A message may take this long. At the end of the run the limit is shorter than ``LAST_SECONDS``.
MESSAGE_SECONDS, LAST_MESSAGE_SECONDS = 20.0, 8.0
# The process that sends messages gives up by itself; it is killed this much later.
_KILL_AFTER_SECONDS = 5.0
_MOST_WAITING = 1000


class EventHook:
    """Starts the processes. ``environment`` is the job's. A failure of one is noted and ends no run."""

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

    def announce(self, action: Announce) -> None:
        if self._orders.survival.notify and is_for_people(action.event, action.state, action.is_handover):
            seconds = LAST_MESSAGE_SECONDS if action.event == ENDED else MESSAGE_SECONDS
            # The addresses hold secrets: only the standard input carries them.
            payload = {
                "urls": self._orders.survival.notify,
                "seconds": seconds,
                "event": self._document(action),
            }
            argv = (sys.executable, "-I", self._paths.agent, "notify")
            log = self._paths.attempt(action.state.epoch).notify_log

            def ended(code: int, late: bool) -> None:
                if late or code:
                    self._note(
                        f"a message about {action.event!r} was not delivered; see {os.path.basename(log)}"
                    )

            try:
                self._start(argv, payload, "/", log, seconds + _KILL_AFTER_SECONDS, ended)
            except (NotStarted, OSError) as error:
                self._note(f"the program that sends messages could not be started: {error}")
        if self._orders.survival.on_event:
            self._waiting.append(action)
            self._next()

    def _next(self) -> None:
        while self._waiting and not self._runs:
            action = self._waiting.popleft()
            argv = ("/bin/sh", "-c", self._orders.survival.on_event)
            cwd = self._orders.cwd if os.path.isdir(self._orders.cwd) else "/"
            log = self._paths.attempt(action.state.epoch).hooks_log
            try:
                self._start(argv, self._document(action), cwd, log, LIMIT_SECONDS, self._ended)
                self._runs = True
            except (NotStarted, OSError) as error:
                self._note(f"the program for events could not be started: {error}")

    def _document(self, action: Announce) -> dict[str, Any]:
        name, run_dir = self._orders.run_name, self._paths.run_dir
        return event_document(
            action.event, action.state, name, self._job_id, run_dir, action.at, reason=action.reason
        )

    def _start(
        self,
        argv: tuple[str, ...],
        document: dict[str, Any],
        cwd: str,
        log_path: str,
        seconds: float,
        ended: Callable[[int, bool], None],
    ) -> None:
        """Start a program with ``document`` as its standard input."""
        stdin = os.memfd_create("event")
        log = -1
        try:
            with open(stdin, "wb", closefd=False) as file:
                file.write(json.dumps(document).encode() + b"\n")
            os.lseek(stdin, 0, os.SEEK_SET)
            log = log_or_nothing(log_path)
            program = Program(argv, self._environment, cwd, stdin, log, log, death_signal=signal.SIGKILL)
            self._commands.start(program, seconds, ended)
        finally:
            for descriptor in (stdin, log):
                if descriptor >= 0:
                    os.close(descriptor)

    def _ended(self, code: int, late: bool) -> None:
        if late:
            self._note(f"the program for events was killed: it ran for {LIMIT_SECONDS:g} s")
        elif code:
            self._note(f"the program for events {code_in_words(code)}; see hooks.log")
        self._runs = False
        self._next()

    def finish(self) -> None:
        self._loop.after(LAST_SECONDS, self._waiting.clear)
        self._commands.finish(LAST_SECONDS)
