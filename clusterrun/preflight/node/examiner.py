"""The examiner of one node: receive tasks, run them without waiting, and answer."""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from clusterrun.atomic_file import write_all
from clusterrun.model.document import BadDocument
from clusterrun.preflight import tasks
from clusterrun.preflight.node.forked_call import ForkedCall
from clusterrun.preflight.node.gpu_driver import hold_driver
from clusterrun.preflight.node.listener import Listener
from clusterrun.preflight.node.message_exchange import MessageExchange, RunningExchange
from clusterrun.preflight.node.proxy import RemoteExaminers, RunningThrough
from clusterrun.preflight.node.task_runner import RunningChecks, RunningDial
from clusterrun.preflight.node.torch_worker_client import TorchWorkerClient
from clusterrun.preflight.probes.network_interfaces import interfaces
from clusterrun.runtime.processes import raise_open_files

_PIECE = 1 << 16
_LONGEST_WAIT = 60.0
_TOPOLOGY = "SLURM_TOPOLOGY_ADDR"


def main(run_dir: str, node_name: str, environment: dict[str, str]) -> int:
    """Serve the agent until it closes the input. A task cannot cause an exception."""
    raise_open_files()
    return Examiner(run_dir, environment, 0, 1).run()


class Examiner:
    """The loop of an examiner: read tasks from ``task_fd``, write answers to ``answer_fd``."""

    def __init__(self, run_dir: str, environment: dict[str, str], task_fd: int, answer_fd: int) -> None:
        self._run_dir, self._environment = run_dir, environment
        self._task_fd, self._answer_fd = task_fd, answer_fd
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, RunningChecks | RunningDial | RunningExchange | RunningThrough] = {}
        self._listener: Listener | None = None
        self._exchange: MessageExchange | None = None
        self._torch_worker = TorchWorkerClient(run_dir, environment, self._answer, self._watch)
        self._remotes = RemoteExaminers(environment, self._watch)
        self._gpu_driver: ForkedCall | None = None
        self._half = b""
        self._ended = False

    def run(self) -> int:
        """Serve until the input ends. Then kill everything that was started."""
        self._watch(self._task_fd, selectors.EVENT_READ, lambda _: self._listen())
        while not self._ended:
            parts = [*self._running.values(), self._torch_worker, *filter(None, [self._exchange])]
            due = min(part.due_at() for part in parts)
            wait = min(_LONGEST_WAIT, max(0.0, due - time.monotonic()))
            for key, events in self._selector.select(wait):
                # A callback of this round may have closed it.
                if self._selector.get_map().get(key.fileobj) is key:
                    key.data(events)
            self._torch_worker.tick()
            if self._exchange is not None:
                self._exchange.tick()
            for number, running in list(self._running.items()):
                if self._running.get(number) is running and running.tick():
                    del self._running[number]
                    self._answer(number, running.answer())
        for running in self._running.values():
            if isinstance(running, RunningChecks):  # Others hold no process.
                running.end()
        self._torch_worker.end()
        self._remotes.end()
        if self._gpu_driver is not None:
            self._gpu_driver.kill()
        return 0

    def _watch(self, what: int | socket.socket, events: int, callback: Callable[[int], None]) -> None:
        key = self._selector.get_map().get(what)
        if not events:
            if key is not None:
                self._selector.unregister(what)
        elif key is not None:
            self._selector.modify(what, events, callback)
        else:
            self._selector.register(what, events, callback)

    def _listen(self) -> None:
        data = os.read(self._task_fd, _PIECE)
        if not data:
            self._ended = True
            return
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                number, task = int(message["number"]), tasks.task(message["body"])
            except (BadDocument, ValueError, KeyError, TypeError) as error:
                print(f"cannot read the task: {error}", file=sys.stderr, flush=True)
            else:
                self._begin(number, task)

    def _begin(self, number: int, task: tasks.Task) -> None:
        running = self._running.get(number)
        if isinstance(running, RunningChecks) and isinstance(task, tasks.LocalTask):
            running.hurry(task.limit)
        elif isinstance(task, (tasks.LocalTask, tasks.PeerTask)):
            if task.needs.gpus and self._gpu_driver is None:
                with suppress(OSError):  # The checks report that no process can be started.
                    self._gpu_driver = hold_driver()
            home = self._environment.get("HOME", "")
            self._running[number] = RunningChecks(task, self._run_dir, home, self._watch)
        elif isinstance(task, tasks.ListenTask):
            if self._listener is not None:
                self._listener.close()
            listener = self._listener = Listener(task.nonce, self._watch, task.port)
            topology = self._environment.get(_TOPOLOGY, "")
            ports, udp_port, holds_port = listener.ports, listener.udp_port, listener.rendezvous is not None
            answer = tasks.ListenAnswer(interfaces(), ports, udp_port, time.time(), topology, holds_port)
            self._answer(number, answer)
        elif isinstance(task, tasks.DialTask):
            heard = self._listener.heard if self._listener else set()
            self._running[number] = RunningDial(task, heard, self._watch)
        elif isinstance(task, tasks.ThroughTask):
            self._running[number] = self._remotes.through(task)
        elif isinstance(task, tasks.ExchangeTask):
            if self._listener is not None:
                self._listener.release_port()
            if task.targets:
                if self._exchange is not None:
                    self._exchange.end()
                self._exchange = MessageExchange(task, self._watch)
            self._running[number] = RunningExchange(task, self._exchange, self._listener)
        elif isinstance(task, tasks.StartTorch):
            self._torch_worker.start(number, task)
        elif isinstance(task, tasks.GroupTask):
            self._torch_worker.test(number, task)

    def _answer(self, number: int, value: tasks.Answer) -> None:
        line = json.dumps({"number": number, "body": tasks.message_text(value)}) + "\n"
        write_all(self._answer_fd, line.encode())
