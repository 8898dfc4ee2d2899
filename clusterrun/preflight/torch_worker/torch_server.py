"""The torch worker: imports torch once, then forks each test that it is asked for on stdin; decides nothing.

It runs with the ranks' Python in the ranks' environment. It never touches CUDA itself, has one
thread, and ends with its stdin or with the process that started it; then its children end too.
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
from clusterrun.preflight.tasks import GroupResult, GroupTask, TorchStarted
from clusterrun.preflight.torch_worker import rank_report
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.forked_rank import ForkedRank, fork
from clusterrun.preflight.torch_worker.group_test_run import GroupTestRun
from clusterrun.runtime.network import bound
from clusterrun.runtime.processes import on_parents_death

Work = Callable[[Callable[[rank_report.RankWord], None]], None]

CORRUPT_VARIABLE = "CLUSTERRUN_TEST_CORRUPT_NODE"
"""A hook for tests: nodes of these names (separated by commas) give a wrong summand in exact sums."""
_SHORTEST_WAIT = 0.02
_READY = 4


def main(environment: Mapping[str, str], gpus: bool = True) -> int:
    """Be the torch worker; ``gpus`` as in ``StartTorch``. Its exit code: 1 where torch cannot be used."""
    began = time.monotonic()
    on_parents_death(os.getppid(), signal.SIGKILL)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get among the answers
    try:
        warm = _warmed(began, gpus, environment.get("CUDA_VISIBLE_DEVICES", ""))
    except BaseException as error:  # noqa: BLE001 (an import may fail in any way, and that is the answer)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"[:300]
        _write(out, TorchStarted(up=False, seconds=time.monotonic() - began, why=why))
        return 1
    ports = ListeningPorts()
    _write(out, replace(warm, ports=ports.fill()))
    gc.collect()
    gc.freeze()  # a child's collection would copy all of these pages
    serving = TorchServer(warm, dict(environment), ports, lambda result: _write(out, result))
    try:
        serving.run()
    finally:
        serving.kill()
    return 0


def _warmed(began: float, gpus: bool, visible: str) -> TorchStarted:
    import torch.distributed

    if not torch.distributed.is_available():
        raise ImportError("this torch was built without torch.distributed")
    # What imports torch at its top is loaded here, once, for all children.
    from clusterrun.preflight.torch_worker import matmul, rank, torch_info  # noqa: F401

    seen = torch_info.look(gpus, visible)
    return replace(seen, seconds=round(time.monotonic() - began, 3))


def _write(descriptor: int, value: object) -> None:
    write_all(descriptor, json.dumps(encode(value), separators=(",", ":")).encode() + b"\n")


class ListeningPorts:
    """A few sockets that listen before a test needs one for its store; each is given away once."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def fill(self) -> tuple[int, ...]:
        new = {one.getsockname()[1]: one for one in map(_listening, [0] * (_READY - len(self._sockets)))}
        self._sockets.update(new)
        return tuple(new)

    def take(self, port: int) -> socket.socket:
        return self._sockets.pop(port, None) or _listening(port)


def _listening(port: int) -> socket.socket:
    one = bound(port)
    one.listen(socket.SOMAXCONN)
    return one


class TorchServer:
    """The loop of the torch worker: tasks come in, trials run, results go out."""

    def __init__(
        self,
        warm: TorchStarted,
        environment: dict[str, str],
        ports: ListeningPorts,
        answer: Callable[[GroupResult], None],
    ) -> None:
        self._warm, self._ports, self._answer = warm, ports, answer
        self._users = environment
        self._spoilt = tuple(filter(None, environment.get(CORRUPT_VARIABLE, "").split(",")))
        self._trials: list[GroupTestRun] = []
        self._waiting: list[tuple[GroupTask, float]] = []
        """Tests with GPUs that were asked for while processes of an earlier one were still leaving."""
        self._rest = b""

    def run(self) -> None:
        asked = True
        while asked:
            asked = self._take_tasks() if self._wait() else True
            self.step(time.monotonic())

    def take(self, task: GroupTask, now: float) -> None:
        self._waiting.append((task, now))
        self._begin_waiting()

    def step(self, now: float) -> None:
        """Answer for tests that have ended, forget those that are gone, and begin what waited for them."""
        for trial in self._trials:
            result = trial.look(now)
            if result:
                self._answer(replace(result, ports=self._ports.fill()))
        self._trials = [trial for trial in self._trials if not trial.over(now)]
        self._begin_waiting()

    def kill(self) -> None:
        for trial in self._trials:
            trial.kill()

    def _wait(self) -> bool:
        """Until something came or is due; whether it is on stdin."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        for trial in self._trials:
            for pipe in trial.pipes:
                poll.register(pipe, select.POLLIN)
        due = min((trial.wakes_at() for trial in self._trials), default=None)
        limit = None if due is None else max(_SHORTEST_WAIT, due - time.monotonic()) * 1000
        return any(descriptor == 0 for descriptor, _ in poll.poll(limit))

    def _take_tasks(self) -> bool:
        data = os.read(0, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.take(decode(GroupTask, json.loads(line)), time.monotonic())
        return bool(data)

    def _begin_waiting(self) -> None:
        """Begin tests in the order of asking; a GPU may take one process only (EXCLUSIVE_PROCESS)."""
        while self._waiting:
            task, asked = self._waiting[0]
            if self._backend(task) == "nccl" and any(trial.leaving for trial in self._trials):
                return
            del self._waiting[0]
            try:
                children = self._fork(task, asked + task.limit)
            except OSError as error:
                why = f"the test could not be started: {of_error(error)}"
                self._answer(GroupResult(test=task.test, passed=False, stage="store", seconds=0.0, why=why))
            else:
                self._trials.append(GroupTestRun(task, children, asked))

    def _backend(self, task: GroupTask) -> str:
        return task.backend or self._warm.backend

    def _fork(self, task: GroupTask, until: float) -> list[ForkedRank]:
        from clusterrun.preflight.torch_worker import matmul, rank

        backend = self._backend(task)
        if task.kind == "product":
            count = 1 if backend == "gloo" else task.ranks  # one for all CPUs of a node, or one for each GPU
            return _all_or_none([(partial(matmul.serve, backend, i, until), -1) for i in range(count)])
        spoils = task.members[task.place].name in self._spoilt
        with self._ports.take(task.port) if task.place == 0 else nullcontext() as listener:
            given = [listener.fileno() if listener and not i else -1 for i in range(task.ranks)]
            ranks = [rank.Rank(task, i, one, until, spoils) for i, one in enumerate(given)]
            works = [partial(one.serve, backend, self._users) for one in ranks]
            return _all_or_none(list(zip(works, given)))


def _all_or_none(works: Sequence[tuple[Work, int]]) -> list[ForkedRank]:
    """A child for each work, with the descriptor that it uses; or none of them. Raises ``OSError``."""
    children: list[ForkedRank] = []
    try:
        for work, kept in works:
            children.append(fork(partial(_said, work), keep=[kept]))
    except OSError:
        for child in children:
            child.end()
        raise
    return children


def _said(work: Work, say: Callable[[str], None]) -> None:
    work(lambda word: say(rank_report.line(word)))
