"""The examiner of one node: takes tasks, has them done without ever waiting, answers; judges nothing."""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable

from clusterrun.atomic_file import write_all
from clusterrun.model.document import BadDocument
from clusterrun.preflight import tasks
from clusterrun.preflight.node.listener import Listener
from clusterrun.preflight.node.message_exchange import ExchangeErrand, MessageExchange
from clusterrun.preflight.node.network_interfaces import interfaces
from clusterrun.preflight.node.proxy import Scouts, Through
from clusterrun.preflight.node.task_runner import DialErrand, LocalErrand
from clusterrun.preflight.node.torch_worker_client import TorchWorkerClient

_PIECE = 1 << 16
_LONGEST_WAIT = 60.0
_OPEN_FILES = 65536
_TOPOLOGY = "SLURM_TOPOLOGY_ADDR"


def main(run_dir: str, node_name: str, environment: dict[str, str]) -> int:
    """Serve the agent until it closes our input. Raises nothing that a task could cause."""
    _raise_file_limit()
    return Worker(run_dir, environment, 0, 1).run()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Worker:
    """``given`` and ``said`` are the descriptors of the agent's questions and our answers."""

    def __init__(self, run_dir: str, environment: dict[str, str], given: int, said: int) -> None:
        self._run_dir, self._environment = run_dir, environment
        self._given, self._said = given, said
        self._selector = selectors.DefaultSelector()
        self._errands: dict[int, LocalErrand | DialErrand | ExchangeErrand | Through] = {}
        self._doors: Listener | None = None
        self._exchange: MessageExchange | None = None
        self._warmth = TorchWorkerClient(run_dir, environment, self._answer, self._watch)
        self._scouts = Scouts(environment, self._watch)
        self._half = b""
        self._ended = False

    def run(self) -> int:
        """Until the input ends; then everything that was started is killed."""
        self._watch(self._given, selectors.EVENT_READ, lambda _: self._listen())
        while not self._ended:
            for key, events in self._selector.select(self._seconds()):
                if self._is_watched(key):
                    key.data(events)
            self._tick()
        for errand in self._errands.values():
            errand.end()
        self._warmth.end()
        self._scouts.end()
        return 0

    def _is_watched(self, key: selectors.SelectorKey) -> bool:
        """Whether an earlier callback of the same round has not closed it."""
        return self._selector.get_map().get(key.fileobj) is key

    def _seconds(self) -> float:
        times = [errand.due_at() for errand in self._errands.values()]
        messages = self._exchange.due_at() if self._exchange is not None else _LONGEST_WAIT + time.monotonic()
        due = min([*times, self._warmth.due_at(), messages])
        return min(_LONGEST_WAIT, max(0.0, due - time.monotonic()))

    def _tick(self) -> None:
        self._warmth.tick()
        if self._exchange is not None:
            self._exchange.tick()
        for number, errand in list(self._errands.items()):
            if self._errands.get(number) is errand and errand.tick():
                del self._errands[number]
                self._answer(number, errand.answer())

    def _watch(self, what: int | socket.socket, events: int, callback: Callable[[int], None]) -> None:
        known = self._selector.get_map().get(what)
        if not events:
            if known is not None:
                self._selector.unregister(what)
        elif known is not None:
            self._selector.modify(what, events, callback)
        else:
            self._selector.register(what, events, callback)

    # --- the agent ---

    def _listen(self) -> None:
        data = os.read(self._given, _PIECE)
        if not data:
            self._ended = True
            return
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            asked = json.loads(line)
            number, task = int(asked["number"]), tasks.task(asked["body"])
        except (BadDocument, ValueError, KeyError, TypeError) as error:
            print(f"not understood: {error}", file=sys.stderr, flush=True)
            return
        self._begin(number, task)

    def _begin(self, number: int, task: tasks.Task) -> None:
        known = self._errands.get(number)
        if isinstance(known, LocalErrand) and isinstance(task, tasks.LocalTask):
            known.hurry(task.limit)
        elif isinstance(task, tasks.LocalTask):
            home = self._environment.get("HOME", "")
            self._errands[number] = LocalErrand(task, self._run_dir, home, self._watch)
        elif isinstance(task, tasks.ListenTask):
            self._answer(number, self._open_doors(task))
        elif isinstance(task, tasks.DialTask):
            heard = self._doors.heard if self._doors else set()
            self._errands[number] = DialErrand(task, heard, self._watch)
        elif isinstance(task, tasks.ThroughTask):
            self._errands[number] = self._scouts.through(task)
        elif isinstance(task, tasks.WatchTask):
            self._errands[number] = self._watching(task)
        elif isinstance(task, tasks.WarmTask):
            self._warmth.start(number, task)
        elif isinstance(task, tasks.GroupTask):
            self._warmth.test(number, task)

    def _open_doors(self, task: tasks.ListenTask) -> tasks.ListenAnswer:
        if self._doors is not None:
            self._doors.close()
        self._doors = Listener(task.nonce, self._watch)
        topology = self._environment.get(_TOPOLOGY, "")
        return tasks.ListenAnswer(
            interfaces(), self._doors.ports, self._doors.datagrams, time.time(), topology
        )

    def _watching(self, task: tasks.WatchTask) -> ExchangeErrand:
        if task.targets:
            if self._exchange is not None:
                self._exchange.end()
            self._exchange = MessageExchange(task, self._watch)
        return ExchangeErrand(task, self._exchange, self._doors)

    def _answer(self, number: int, value: tasks.Answer) -> None:
        line = json.dumps({"number": number, "body": tasks.said(value)}) + "\n"
        write_all(self._said, line.encode())
