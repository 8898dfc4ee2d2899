"""The torch worker: import torch once, then fork each test that stdin requests.

It runs with the ranks' Python in the ranks' environment. It never uses CUDA itself and has one thread. It and
its children end with its stdin or with the process that started it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from clusterrun.atomic_file import write_all
from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import replace
from clusterrun.preflight.tasks import (
    BURN,
    DEVICE,
    PEERS,
    PRODUCT,
    STORE,
    GroupResult,
    GroupTask,
    TorchStarted,
)
from clusterrun.preflight.torch_worker import rank_report
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.forked_rank import ForkedRank, fork
from clusterrun.preflight.torch_worker.group_test_run import GroupTestRun
from clusterrun.runtime.network import bound
from clusterrun.runtime.processes import on_parents_death

Work = Callable[[Callable[[rank_report.RankReport], None]], None]

# A hook for tests: the nodes with these names (separated by commas) contribute a wrong summand.
CORRUPT_VARIABLE = "CLUSTERRUN_TEST_CORRUPT_NODE"
_SHORTEST_WAIT = 0.02
_READY = 4


def main(environment: Mapping[str, str], gpus: bool = True) -> int:
    """Run the torch worker. Return 1 if torch is unusable. ``gpus`` is as in ``StartTorch``."""
    began = time.monotonic()
    on_parents_death(os.getppid(), signal.SIGKILL)
    out = os.dup(1)
    os.dup2(2, 1)  # Prints of libraries must not mix with the answers.
    try:
        import torch.distributed

        if not torch.distributed.is_available():
            raise ImportError("this torch was built without torch.distributed")
        # Load the modules that import torch once, for all children.
        from clusterrun.preflight.torch_worker import gpu_rates, matmul, rank, torch_info  # noqa: F401

        info = torch_info.inspect_torch(gpus, environment.get("CUDA_VISIBLE_DEVICES", ""))
        started = replace(info, seconds=round(time.monotonic() - began, 3))
    except BaseException as error:  # noqa: BLE001 (any failure of the import is the answer)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        why = f"{type(error).__name__}: {reason}"[:300]
        _write(out, TorchStarted(up=False, seconds=time.monotonic() - began, why=why))
        return 1
    ports = ListeningPorts()
    _write(out, replace(started, ports=ports.fill()))
    gc.collect()
    gc.freeze()  # Else a collection in a child copies all of these pages.
    serving = TorchServer(started, dict(environment), ports, lambda result: _write(out, result))
    try:
        serving.run()
    finally:
        serving.kill()
    return 0


def _write(descriptor: int, value: object) -> None:
    write_all(descriptor, json.dumps(encode(value), separators=(",", ":")).encode() + b"\n")


class ListeningPorts:
    """Sockets that listen before a test needs one for its store. Each is used once."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def fill(self) -> tuple[int, ...]:
        new = {
            listener.getsockname()[1]: listener
            for listener in map(_listening, [0] * (_READY - len(self._sockets)))
        }
        self._sockets.update(new)
        return tuple(new)

    def take(self, port: int) -> socket.socket:
        return self._sockets.pop(port, None) or _listening(port)


def _listening(port: int) -> socket.socket:
    listener = bound(port)
    listener.listen(socket.SOMAXCONN)
    return listener


class TorchServer:
    """The loop of the torch worker: read tasks, run tests, write results."""

    def __init__(
        self,
        started: TorchStarted,
        environment: dict[str, str],
        ports: ListeningPorts,
        answer: Callable[[GroupResult], None],
    ) -> None:
        self._started, self._ports, self._answer = started, ports, answer
        self._users = environment
        self._spoilt = tuple(filter(None, environment.get(CORRUPT_VARIABLE, "").split(",")))
        self._test_runs: list[GroupTestRun] = []
        # Tests on GPUs that wait until the processes of an earlier test end.
        self._waiting: list[tuple[GroupTask, float]] = []
        self._rest = b""

    def run(self) -> None:
        is_open = True
        while is_open:
            # Wait for an event or the next deadline.
            poll = select.poll()
            poll.register(0, select.POLLIN)
            for test_run in self._test_runs:
                for pipe in test_run.pipes:
                    poll.register(pipe, select.POLLIN)
            due = min((test_run.wakes_at() for test_run in self._test_runs), default=None)
            limit = None if due is None else max(_SHORTEST_WAIT, due - time.monotonic()) * 1000
            if any(descriptor == 0 for descriptor, _ in poll.poll(limit)):
                data = os.read(0, 65536)
                is_open = bool(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self.accept(decode(GroupTask, json.loads(line)), time.monotonic())
            self.step(time.monotonic())

    def accept(self, task: GroupTask, now: float) -> None:
        self._waiting.append((task, now))
        self._begin_waiting()

    def step(self, now: float) -> None:
        """Answer for complete tests, drop the ended ones, and begin waiting tests."""
        for test_run in self._test_runs:
            result = test_run.poll(now)
            if result:
                self._answer(replace(result, ports=self._ports.fill()))
        self._test_runs = [test_run for test_run in self._test_runs if not test_run.over(now)]
        self._begin_waiting()

    def kill(self) -> None:
        for test_run in self._test_runs:
            test_run.kill()

    def _begin_waiting(self) -> None:
        """Begin tests in the order of arrival. A GPU may accept only one process (EXCLUSIVE_PROCESS)."""
        while self._waiting:
            task, received_at = self._waiting[0]
            if self._backend(task) == "nccl" and any(test_run.leaving for test_run in self._test_runs):
                return
            del self._waiting[0]
            try:
                children = self._fork(task, received_at + task.limit)
            except OSError as error:
                why = f"the test could not be started: {of_error(error)}"
                self._answer(GroupResult(test=task.test, passed=False, stage=STORE, seconds=0.0, why=why))
            else:
                self._test_runs.append(GroupTestRun(task, children, received_at))

    def _backend(self, task: GroupTask) -> str:
        return task.backend or self._started.backend

    def _fork(self, task: GroupTask, until: float) -> list[ForkedRank]:
        from clusterrun.preflight.torch_worker import gpu_rates, matmul, rank

        backend = self._backend(task)
        if task.kind == PRODUCT:
            # One product for all CPUs of a node, or one for each GPU.
            count = 1 if backend == "gloo" else task.ranks
            return _all_or_none([(partial(matmul.serve, backend, i, until), -1) for i in range(count)])
        if task.kind in (BURN, DEVICE, PEERS):
            count = 1 if backend == "gloo" or task.kind == PEERS else task.ranks
            serve = partial(gpu_rates.serve, task.kind, backend)
            return _all_or_none([(partial(serve, i, task.seconds, until), -1) for i in range(count)])
        spoils = task.members[task.place].name in self._spoilt
        with self._ports.take(task.port) if task.place == 0 else nullcontext() as listener:
            descriptors = [listener.fileno() if listener and not i else -1 for i in range(task.ranks)]
            ranks = [rank.Rank(task, i, fd, until, spoils) for i, fd in enumerate(descriptors)]
            works = [partial(test_rank.serve, backend, self._users) for test_rank in ranks]
            return _all_or_none(list(zip(works, descriptors)))


def _all_or_none(works: Sequence[tuple[Work, int]]) -> list[ForkedRank]:
    """Fork a child per work, with the descriptor that it uses. Raise ``OSError`` and end all if one fails."""
    children: list[ForkedRank] = []
    try:
        for work, descriptor in works:
            children.append(fork(partial(_serve, work), keep=[descriptor]))
    except OSError:
        for child in children:
            child.end()
        raise
    return children


def _serve(work: Work, say: Callable[[str], None]) -> None:
    work(lambda report: say(rank_report.line(report)))
