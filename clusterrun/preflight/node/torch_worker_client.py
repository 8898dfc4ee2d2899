"""Start the torch worker, send tests to it, and kill it if it does not answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

from clusterrun.atomic_file import write_all
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.paths import RunPaths
from clusterrun.preflight.node.forked_call import ForkedCall, execute
from clusterrun.preflight.node.listener import READ
from clusterrun.preflight.tasks import NO_WORKER, Answer, GroupResult, GroupTask, StartTorch, TorchStarted
from clusterrun.runtime.overload import explains_wait

Say = Callable[[int, Answer], None]

# The torch worker ends a late test itself. It is killed if it does not report that within this time.
SLACK_SECONDS = 3.0
_LONGEST_WORDS = 400


@frozen
class _OpenTest:
    """A test of the torch worker. Times are monotonic."""

    number: int  # of the request
    began: float
    until: float
    without: float  # seconds that the worker had waited for a processor before


class TorchWorkerClient:
    """The client of one torch worker at a time. ``say`` takes answers. ``watch`` is as in ``listener``."""

    def __init__(
        self, run_dir: str, environment: Mapping[str, str], say: Say, watch: Callable[..., None]
    ) -> None:
        self._paths, self._environment = RunPaths(run_dir), environment
        self._say, self._watch = say, watch
        self._child: ForkedCall | None = None
        self._input = -1
        self._asked: int | None = None
        self._began = 0.0
        self._tests: dict[int, _OpenTest] = {}
        self._words = ""

    def start(self, number: int, task: StartTorch) -> None:
        """Replace the torch worker. The answer to ``number`` follows at its start or end."""
        self._kill("another torch worker was requested")
        self._asked, self._began, self._words = number, time.monotonic(), ""
        argv: tuple[str, ...] = (task.python, "-u", self._paths.agent, "warm", str(int(task.gpus)))
        environment, cwd = self._environment, task.cwd
        try:
            if task.contained:
                from clusterrun import container_runtimes
                from clusterrun.model.orders import Orders

                with open(self._paths.orders, "rb") as file:
                    orders = decode(Orders, json.loads(file.read()))
                container_runtimes.make_places(orders.container)
                inside = (task.python, "-I", "-S", self._paths.agent, "within", task.cwd, "--", *argv)
                names = [name for name, _ in orders.environment]
                argv, environment = container_runtimes.in_container(
                    orders.container, inside, self._environment, names
                )
                # The process with which podman removes the container must outlive the examiner.
                environment.pop(contract.COMPANION_VARIABLE, None)
                cwd = "/"
            self._child, self._input = execute(argv, environment, cwd)
        except OSError as error:
            self._up(TorchStarted(False, 0.0, f"no process could be started: {error.strerror}"))
            return
        except ClusterrunError as error:
            self._up(TorchStarted(False, 0.0, f"{error.seen}; {error.remedy}"))
            return
        self._watch(self._child.output, READ, lambda _: self._read())

    def test(self, number: int, task: GroupTask) -> None:
        if self._child is None:
            self._say(number, _unmade(task.test, "there is no torch worker", False))
            return
        now, without = time.monotonic(), self._child.seconds_without_processor()
        self._tests[task.test] = _OpenTest(number, now, now + task.limit + SLACK_SECONDS, without)
        try:
            write_all(self._input, json.dumps(encode(task)).encode() + b"\n")
        except OSError:
            self._kill("the torch worker has ended")

    def due_at(self) -> float:
        return min((test.until for test in self._tests.values()), default=float("inf"))

    def tick(self) -> None:
        if self._tests and time.monotonic() >= self.due_at():
            self._kill("the torch worker did not end its test", late=True)

    def end(self) -> None:
        self._kill("the check is over")

    def _read(self) -> None:
        for line in self._child.lines() if self._child is not None else ():
            try:
                data = json.loads(line)
                answer = decode(GroupResult, data) if self._asked is None else decode(TorchStarted, data)
            except (ValueError, BadDocument):  # Output of a library, which may explain a later end.
                self._words = line.decode("utf-8", "replace")[-_LONGEST_WORDS:]
                continue
            if isinstance(answer, TorchStarted):
                self._up(answer)
            elif answer.test in self._tests:
                self._say(self._tests.pop(answer.test).number, answer)
        if self._child is not None and self._child.closed:
            reason = self._child.rest or self._words or "it printed nothing"
            self._kill(f"the torch worker ended: {reason[-_LONGEST_WORDS:]}")

    def _up(self, warm_up: TorchStarted) -> None:
        number, self._asked = self._asked, None
        if number is not None:
            self._say(number, warm_up)

    def _kill(self, why: str, late: bool = False) -> None:
        child, self._child = self._child, None
        without = child.seconds_without_processor() if child is not None and late else 0.0
        if child is not None:
            doing = child.kill()
            child.leave(self._watch)
            os.close(self._input)
            why += f" ({doing})" if late else ""
        self._up(TorchStarted(False, time.monotonic() - self._began, why))
        tests, self._tests = self._tests, {}
        for test, open_test in tests.items():
            seconds = time.monotonic() - open_test.began
            starved = late and explains_wait(without - open_test.without, seconds)
            self._say(open_test.number, _unmade(test, why, late, starved))


def _unmade(test: int, why: str, late: bool, starved: bool = False) -> GroupResult:
    return GroupResult(test, False, NO_WORKER, 0.0, why=why, late=late, starved=starved)
