"""The user's program on all nodes: it trains, crashes, collides, hangs on a lost peer; knows no machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .kernel import Process

if TYPE_CHECKING:
    from .world import World


# Last step of a program that makes no progress. A step takes one second.
SAME_STEP = 3


class EpochRun:
    """The ranks of one epoch, as they really were; ``base`` is the step at which they began."""

    def __init__(self, start: int, began: float, base: int) -> None:
        self.start = start
        self.began = began
        self.base = base
        self.broken_at: float | None = None
        self.ranks: dict[int, Process] = {}
        self.ends: dict[int, tuple[int, str, float]] = {}
        self.broken = False
        self.stopping = False


class Program:
    """The user's program. Each start of its ranks is an ``EpochRun``, by coordinator and epoch."""

    def __init__(self, world: World) -> None:
        self.runs: dict[tuple[int, int], EpochRun] = {}
        self._world = world

    def rank_started(self, process: Process) -> None:
        """Note the start of a rank of the user's program."""
        key = (process.run, process.epoch)
        run = self.runs.get(key)
        if run is None:
            run = self.runs[key] = EpochRun(len(self.runs), self._world.clock.now, self._best() + 1)
        run.ranks[process.rank] = process
        self._world.watch.rank_started(process)
        if (
            self._world.scenario.has("stuck")
            and not self._world.healed
            and self._world.fault_chance.random() < 0.2
        ):
            process.unkillable = True
        if process.rank == 0 and run.start < self._world.scenario.collisions:
            process.collides = True
            process.node.later(0.2, self._ends, process, 1)
        crash = self._world.scenario.crashes.get(run.start)
        if crash is not None and crash[0] == process.rank:
            process.error = self._world.scenario.errors.get(run.start, "")
            process.node.later(crash[1], self._ends, process, crash[2])
        if len(run.ranks) == self._world.scenario.nodes * self._world.scenario.processes:
            for rank in run.ranks.values():
                late = self._world.process_chance.random() * self._world.process_chance.choice(
                    (0.01, 0.1, 3.0)
                )
                rank.node.later(self._world.scenario.duration + late, self._completes, run, rank)

    def step(self, number: int, epoch: int) -> int:
        """Return the newest step that the ranks of this epoch have reported; -1 if they report none."""
        run, mode = self.runs.get((number, epoch)), self._world.scenario.progress
        if run is None or not mode:
            return -1
        seconds = int((run.broken_at or self._world.clock.now) - run.began)
        return reported(mode, seconds, run.base)

    def _best(self) -> int:
        return max((self.step(*key) for key in self.runs), default=-1)

    def _ends(self, process: Process, code: int) -> None:
        if process.termed_at is None:
            process.end(code, "natural")

    def _completes(self, run: EpochRun, process: Process) -> None:
        if not run.broken and process.termed_at is None:
            process.end(0, "natural")

    def break_peers(self, process: Process) -> None:
        """Let the peers of a rank that ended early fail soon, or hang for ever."""
        run = self.runs[(process.run, process.epoch)]
        if run.broken:
            return
        run.broken = True
        run.broken_at = self._world.clock.now
        for peer in run.ranks.values():
            if peer.alive and self._world.process_chance.random() < 0.5:
                peer.node.later(self._world.process_chance.uniform(0.02, 3.0), self._fails_too, peer)

    def _fails_too(self, process: Process) -> None:
        if process.termed_at is None:
            process.end(1, "collateral")


def reported(mode: str, seconds: int, base: int) -> int:
    """Return the step that a program of this kind reaches in ``seconds``."""
    if seconds < 1:
        return -1
    return base + seconds if mode == "further" else min(seconds, SAME_STEP)
