"""Run the ranks of a node in one container, for runtimes that are a program in front of the command.

The agent stays outside. It starts a new container for each attempt. Its only program is ``rank_forker``,
which starts the ranks and reports their ends. Their process ids are those of the host.
"""

from __future__ import annotations

import json
import os
import signal
import time

from clusterrun import container_runtimes, proc
from clusterrun.agent.rank_processes import RankProcesses
from clusterrun.agent.sidecar_processes import Sidecar, started
from clusterrun.model.container import PYTHON
from clusterrun.model.frozen import Any, replace
from clusterrun.model.phrases import code_in_words
from clusterrun.model.world import Lineage, run_environment
from clusterrun.protocol.messages import RankExited, RanksStarted, StartFailed, StartRanks, ToCoordinator
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.kill_tree import send
from clusterrun.runtime.overload import PatientLimit
from clusterrun.runtime.processes import ProcessEnd, Program
from clusterrun.runtime.run_files import open_log

# Limit for the start of a container: an image may be unpacked first. It is less than the coordinator waits
# for a start.
START_SECONDS = 100.0
_LOOK_SECONDS = 0.5
# A runtime may take this long to remove its container after all its processes were killed.
_END_SECONDS = 3.0
_PAUSE = 0.005
_LONGEST_WORDS = 600
LOG = "container"


class ContainedRanks(RankProcesses):
    """The ranks of one node in a container. ``loop`` is the agent's event loop."""

    def __init__(self, *arguments: Any, loop: EventLoop) -> None:
        super().__init__(*arguments)
        self.loop = loop
        self._box: Sidecar | None = None
        self._order: StartRanks
        self._log = ""
        self._spawned = False
        self._limit = PatientLimit(START_SECONDS)
        self._why_gone = ""
        self._reaping = self._ending = False
        self._news: list[RanksStarted | StartFailed] = []
        self._ends: list[tuple[int, int]] = []

    def _start(self, message: StartRanks, programs: list[Program]) -> tuple[RanksStarted | StartFailed, ...]:
        """Start the container; ``reap`` reports the result."""
        self._order, self._news, self._ends, self._why_gone = message, [], [], ""
        self._spawned = False
        container = self._orders.container
        container_runtimes.make_places(container)
        user_names = [name for name, _ in self._orders.environment]
        python = self._orders.interpreter.path or PYTHON
        forker = (python, "-I", "-S", self._paths.agent, "fork-ranks")
        lineage = Lineage(self.run_id, self._orders.run_name, self._paths.run_dir, message.epoch, 0)
        base = {**self._base, **run_environment(lineage)}
        argv, environment = container_runtimes.in_container(container, forker, base, user_names)
        self._log = self._paths.attempt(message.epoch).sidecar_log(message.node, LOG)
        environment_items = tuple(environment.items())
        self._box = started(
            self.loop,
            message.epoch,
            open_log(self._log),
            lambda fds: Program(argv, environment_items, "/", *fds, signal.SIGKILL, ignores_term=True),
        )
        self._box.open(lambda number, body: self._heard(json.loads(body)), self._broke, lambda: True)
        # Variables that all ranks share are sent once.
        paths = self._paths.attempt(message.epoch)
        environments = []
        for program in programs:
            outside = dict(program.environment)
            environments.append(container_runtimes.environment_inside(outside, user_names))
        others = [environment.items() for environment in environments[1:]]
        common = dict(set(environments[0].items()).intersection(*others))
        ranks = [
            {
                "argv": program.argv,
                "environment": {name: value for name, value in variables.items() if name not in common},
                "out": paths.out(rank),
                "err": paths.err(rank),
                "cpus": sorted(program.cpus),
            }
            for rank, program, variables in zip(self._numbers(message), programs, environments)
        ]
        orders = self._orders
        order = {
            "common": common,
            "cwd": orders.cwd,
            "input": orders.input,
            "pipes": orders.pipes_output,
            "ranks": ranks,
        }
        self._box.ask(0, json.dumps(order))
        self._limit = PatientLimit(START_SECONDS)
        self._look(self._box)
        return ()

    def _look(self, box: Sidecar) -> None:
        """Give up a container that does not start in time, or whose ranks are no longer wanted."""
        if self._box is not box or self._spawned:
            return
        if self._limit.expires_within(0.0) or not self.wanted():
            why = "this node was ordered to end"
            if self.wanted():
                why = f"the container did not start within {START_SECONDS:.0f} s"
            self._tell(StartFailed(self._epoch, why))
            return
        self.loop.after(_LOOK_SECONDS, lambda: self._look(box))

    def _heard(self, report: dict[str, Any]) -> None:
        if "pids" in report and report["space"] != os.readlink("/proc/self/ns/pid"):
            why = "the container has its own process ids; let it share the host's process ids"
            self._tell(StartFailed(self._epoch, why))
        elif "pids" in report:
            self._spawned = True
            self._tell(self._begun(self._order, report["pids"], report["forker"]))
        elif "failed" in report:
            self._tell(StartFailed(self._epoch, str(report["failed"])))
        elif "ended" in report:
            self._ends.append((int(report["ended"]), int(report["code"])))
            self._changed()

    def _broke(self, why: str) -> None:
        self._why_gone = f"the container {why}"
        if self._box:
            self._gone(self._box)

    def _tell(self, event: RanksStarted | StartFailed) -> None:
        self._news.append(event)
        self._changed()

    def _changed(self) -> None:
        if not self._reaping:
            self.changed()

    def reap(self, wall: float) -> list[ToCoordinator]:
        self._reaping = True
        events = super().reap(wall)
        self._reaping = False
        ends, self._ends = self._ends, []
        rank_ends = [(pid, code) for pid, code in ends if pid in self._ranks]
        ended = [self._ended(self._ranks.pop(pid), pid, code, wall) for pid, code in rank_ends]
        if ended:
            self.note_growth(wall)
        news, self._news = self._news, []
        return [*news, *events, *ended]

    def _not_a_rank(self, child: ProcessEnd) -> None:
        box = self._box
        if box is None or child.pid != box.pid:
            super()._not_a_rank(child)
            return
        box.last_words()
        self._why_gone = self._why_gone or f"the container {code_in_words(child.code)}"
        self._gone(box)

    def _gone(self, box: Sidecar) -> None:
        """Report the ends of all ranks of a container that has ended, because its forker no longer can."""
        self._box = None
        box.close()
        if not self._spawned:
            output = _tail(self._log)
            self._tell(StartFailed(self._epoch, ": ".join(filter(None, [self._why_gone, output]))))
        for process in self._processes:
            send(process, signal.SIGKILL)
        reported = {pid for pid, _ in self._ends}
        self._ends += [(pid, -signal.SIGKILL) for pid in self._ranks if pid not in reported]
        self._changed()

    def _with_words(self, end: RankExited, wall: float) -> RankExited:
        end = super()._with_words(end, wall)
        if not self._why_gone or self._ending:
            return end
        line = f"clusterrun: {self._why_gone}: {_tail(self._log)}"
        return replace(end, last_lines=(*end.last_lines, line))

    def sweep(self, epoch: int, wall: float) -> list[ToCoordinator]:
        """End the container in good order, then kill what is left of it."""
        self._ending = True
        box, until = self._box, steady() + _END_SECONDS
        if box:
            box.last_words()
            box.stop_asking()  # the forker kills its descendants and ends
        ended: list[ToCoordinator] = []
        while self._box is box is not None and steady() < until:
            ended += self.reap(wall)
            time.sleep(_PAUSE)
        ended += super().sweep(epoch, wall)
        self._ending = False
        return ended


def _tail(path: str) -> str:
    lines = proc.content(path).decode("utf-8", "replace").strip().splitlines()
    return "; ".join(lines[-3:])[-_LONGEST_WORDS:]
