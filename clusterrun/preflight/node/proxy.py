"""Pass tasks to an examiner on a node that no agent reached, through a program that reaches it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from clusterrun.atomic_file import write_all
from clusterrun.preflight.node.forked_call import execute
from clusterrun.preflight.node.listener import READ
from clusterrun.preflight.tasks import ThroughAnswer, ThroughTask
from clusterrun.slurm_text.srun_messages import OF_MEMORY

_LONGEST_WORDS = 300


class RemoteExaminer:
    """The examiner on the other node. Raise ``OSError`` if no program can be started."""

    def __init__(
        self, argv: tuple[str, ...], environment: Mapping[str, str], watch: Callable[..., None]
    ) -> None:
        self.heard: dict[int, str] = {}
        self.over = False
        self.why = ""
        self._watch = watch
        self._last = 0
        self._child, self._input = execute(argv, environment, "/")
        watch(self._child.output, READ, lambda _: self._read())

    def tell(self, body: str) -> int:
        """Send a task to it. Return the number of the answer."""
        self._last += 1
        with suppress(OSError):  # The output of an ended program tells the reason.
            write_all(self._input, json.dumps({"number": self._last, "body": body}).encode() + b"\n")
        return self._last

    def end(self) -> None:
        if not self.over:
            self._part("it was ended")

    def _read(self) -> None:
        for line in self._child.lines():
            try:
                message = json.loads(line)
                self.heard[int(message["number"])] = str(message["body"])
            except (ValueError, TypeError, KeyError):  # A message of the program itself.
                self.why = line.decode("utf-8", "replace")[-_LONGEST_WORDS:]
        if self._child.closed and not self.over:
            self._part(self._child.rest or self.why or "it ended without giving a reason")

    def _part(self, why: str) -> None:
        self.over, self.why = True, why
        self._child.leave(self._watch)
        os.close(self._input)


class RunningThrough:
    """Execute one ``ThroughTask``. ``remote`` is None if there is no examiner, and ``why`` is the reason."""

    def __init__(self, task: ThroughTask, remote: RemoteExaminer | None, why: str) -> None:
        self._remote, self._why = remote, why
        self._until = time.monotonic() + task.limit
        self._number = remote.tell(task.body) if remote is not None and not remote.over else 0

    def due_at(self) -> float:
        return self._until

    def tick(self) -> bool:
        remote, late = self._remote, time.monotonic() >= self._until
        return remote is None or remote.over or self._number in remote.heard or late

    def answer(self) -> ThroughAnswer:
        remote = self._remote
        if remote is None:
            return ThroughAnswer("", self._why)
        body = remote.heard.pop(self._number, "")
        return ThroughAnswer(body, "" if body else remote.why or "no answer within the limit")


class RemoteExaminers:
    def __init__(self, environment: Mapping[str, str], watch: Callable[..., None]) -> None:
        self._environment = {key: value for key, value in environment.items() if key not in OF_MEMORY}
        self._watch = watch
        self._known: dict[str, RemoteExaminer] = {}

    def through(self, task: ThroughTask) -> RunningThrough:
        """Send a task to the examiner of its node. Start the examiner if none runs there."""
        why = ""
        if not task.body:
            self._end(task.name)
        elif task.name not in self._known:
            try:
                self._known[task.name] = RemoteExaminer(task.argv, self._environment, self._watch)
            except OSError as error:
                why = f"no process could be started: {error.strerror}"
        return RunningThrough(task, self._known.get(task.name), why)

    def _end(self, name: str) -> None:
        remote = self._known.pop(name, None)
        if remote is not None:
            remote.end()

    def end(self) -> None:
        for name in list(self._known):
            self._end(name)
