"""Start the runs of a rehearsal on this machine, each in a copy of the working directory, and await them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from typing import Any

from clusterrun import proc
from clusterrun.api import Run, launch
from clusterrun.atomic_file import end_of
from clusterrun.local import processes
from clusterrun.local.gpus import count_gpus
from clusterrun.model.contract import REHEARSAL_VARIABLE
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.operations.context import Context
from clusterrun.rehearse.rank_trace import Start, read, traces
from clusterrun.rehearse.working_copy import copy_folder, moved
from clusterrun.runs.private_files import names_in
from clusterrun.system import text_of

STEP = re.compile(rb'"t": "step", "n": (\d+)')
# Bytes at the end of a trace. The line of a step is shorter unless its batch is very large.
TAIL_BYTES = 16384
LOOK_EVERY = 0.1
END_SECONDS = 20.0
# Seconds for a save that a notice started.
WAIT_FOR_END = 300.0


class BudgetSpent(Exception):
    """The budget is used up."""


class RehearsedRuns:
    """The copies of the user's run that a rehearsal starts below ``folder`` and disturbs.

    No wait outlasts the budget.
    """

    # Runs at the same time. A fault consists of waiting in part.
    at_once = 2

    def __init__(self, spec: JobSpec, folder: str, environ: dict[str, str], budget: float) -> None:
        # Ranks report the real paths of their files.
        self.spec, self.folder, self.budget = spec, os.path.realpath(folder), budget
        self._context = Context({**environ, "CLUSTERRUN_HOME": os.path.join(folder, "home")})
        self._until = time.monotonic() + budget
        # The name of the run, and the run, by the process of its coordinator.
        self._live: dict[str, tuple[str, Run]] = {}

    def is_late(self) -> bool:
        return time.monotonic() > self._until

    def stop_waiting(self) -> None:
        """End every wait for a run, and the run with it."""
        self._until = 0.0

    def fit(self, nodes: int) -> None:
        """Refuse a rehearsal with too few GPUs before anything is copied. Raises ``BadInput``."""
        required = nodes * self.spec.gpus
        available = count_gpus(self._context.environ) if required else 0
        if required > available:
            raise BadInput(
                f"{nodes} nodes of {self.spec.gpus} GPUs are wanted; this machine has {available} GPUs",
                "leave --gpus out for ranks on the CPU, or rehearse where GPUs are: --cluster slurm",
            )

    def begin(self, name: str, folder: str, orders: dict[str, Any], restarts: int = 3, nodes: int = 0) -> Run:
        spec = replace(
            self.spec,
            name=f"rehearse-{name}",
            cwd=folder,
            command=tuple(moved(word, self.spec.cwd, folder) for word in self.spec.command),
            nodes=nodes or self.spec.nodes,
            max_restarts=restarts,
            notify=(),  # the failures are intended
            environment=(*self.spec.environment, (REHEARSAL_VARIABLE, json.dumps(orders))),
        )
        run = self._launch(spec)
        self._live[run.record.coordinator] = name, run
        return run

    def progress(self) -> str:
        """Describe each live run with its start and the last step of its first rank, then the time used."""
        parts = []
        for name, run in list(self._live.values()):
            attempts = sorted(names_in(run.paths.attempts))
            newest = traces(os.path.join(run.paths.attempts, attempts[-1])) if attempts else []
            steps = STEP.findall(end_of(newest[0], TAIL_BYTES)[0]) if newest else []
            step = f"step {int(steps[-1])}" if steps else "before its first step"
            start = f", start {len(attempts)}" if len(attempts) > 1 else ""
            parts.append(f"{name}{start}: {step}")
        used = time.monotonic() - (self._until - self.budget)
        return f"{'; '.join(parts) or 'between two runs'}; {used:.0f} s of {self.budget:g} s"

    def _launch(self, spec: JobSpec) -> Run:
        return launch(spec, self._context)

    def kill_node(self, run: Run, node: int) -> None:
        """Kill every process of one simulated node, its agent first; the node's ranks carry its number."""
        job = int(run.job_id.partition(".")[0])
        for agent in proc.descendants(job):
            arguments = text_of(f"/proc/{agent.pid}/cmdline").split("\0")
            if "agent" not in arguments[:7] or not any(word.endswith("agent.pyz") for word in arguments):
                continue
            descendants = proc.descendants(agent.pid)
            if any(proc.environment(process.pid).get("NODE_RANK") == str(node) for process in descendants):
                for process in (agent, *descendants):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
                return

    def copy(self, name: str) -> str:
        """Copy the working directory to a folder of this name, which gets a number if it is taken."""
        target, number = os.path.join(self.folder, name), 1
        while os.path.exists(target):
            number += 1
            target = os.path.join(self.folder, f"{name}-{number}")
        copy_folder(self.spec.cwd, target)
        return target

    def over(self, run: Run) -> bool:
        return not processes.alive(run.record.coordinator)

    def finish(self, run: Run, starts: int = 1, next_start: int = 0) -> None:
        """Wait for the end of a run, at most until its ranks were started twice more than ``starts`` times.

        ``next_start``: wait only until they are started that time, counted from 0. Raises ``BudgetSpent``.
        """
        while not self.over(run):
            self.check_time(run)
            start_count = len(os.listdir(run.paths.attempts)) if os.path.isdir(run.paths.attempts) else 0
            if start_count > starts + 1:
                self.end(run)
            if start_count > next_start > 0:
                return
            time.sleep(LOOK_EVERY)
        self._live.pop(run.record.coordinator, None)

    def wait_held(self, run: Run) -> None:
        """Return when every rank waits. Raises ``BudgetSpent``."""
        folder = run.paths.attempt(0).folder
        while True:
            self.check_time(run)
            held = sum('"t": "hold"' in text_of(path) for path in traces(folder))
            if held >= self.spec.world_size or self.over(run):
                return
            time.sleep(LOOK_EVERY)

    def notified(self, run: Run, seconds: float) -> float | None:
        """Give notice. Return the seconds until the run ended by itself, or None if it had to be ended."""
        folder = run.paths.attempt(0)
        self.give_notice(run)
        began = time.monotonic()
        while not os.path.exists(folder.notice) and time.monotonic() - began < END_SECONDS:
            time.sleep(LOOK_EVERY / 4)
        noticed_at = time.monotonic()
        with open(folder.beside("rehearsal.go"), "w"):
            pass
        while not self.over(run) and time.monotonic() - noticed_at < min(seconds, WAIT_FOR_END):
            self.check_time(run)
            time.sleep(LOOK_EVERY / 4)
        took = time.monotonic() - noticed_at
        if not self.over(run):
            self.end(run)
            return None
        life = read(folder.folder)
        return took if all(trace.end == "exit" for trace in life.ranks.values()) else None

    def give_notice(self, run: Run) -> None:
        """Give notice as Slurm does, to the coordinator, which is on this machine."""
        processes.send(run.record.coordinator, signal.SIGUSR2)

    def end(self, run: Run) -> None:
        if self.over(run):
            return
        processes.end(run.record.coordinator, self._context.clock, END_SECONDS)
        self._live.pop(run.record.coordinator, None)

    def check_time(self, run: Run) -> None:
        """End the run if the budget is used up. Raises ``BudgetSpent``."""
        if self.is_late():
            self.end(run)
            raise BudgetSpent

    def starts(self, run: Run) -> tuple[Start, ...]:
        folder = run.paths.attempts
        return tuple(read(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))

    def lives(self, run: Run) -> tuple[Start, ...]:
        """Return the starts in which at least one rank wrote a trace."""
        return tuple(life for life in self.starts(run) if life.ranks)

    def end_all(self) -> None:
        """End every run, and every wait for one."""
        self.stop_waiting()
        for process in list(self._live):
            processes.end(process, self._context.clock, END_SECONDS)
