"""The cells of the fault matrix: its columns, what cannot meet, and a cover of all pairs; does nothing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

PHASES = (
    "queued",
    "starting",
    "pre-flight",
    "training",
    "checkpoint",
    "restart",
    "swap",
    "between jobs",
    "ending",
)
PROCESS_FAULTS = (
    "killed",
    "stopped 1 s",
    "stopped 20 s",
    "stopped for good",
    "no files 20 s",
    "out of memory",
)
LINK_FAULTS = ("unheard 40 s", "deaf 40 s")
HOST_FAULTS = (
    "cut off 6 s",
    "cut off 40 s",
    "lossy 40 s",
    "slow 40 s",
    "slurmd killed",
    "home full 20 s",
    "read-only 20 s",
    "wrong clock",
    "power cut",
)
FAULTS = (*PROCESS_FAULTS, *LINK_FAULTS, *HOST_FAULTS)
VICTIMS = ("coordinator", "agent", "rank", "spare", "srun")
WAITING = ("queued", "between jobs")
"""Phases in which a job waits in Slurm's queue."""


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    phase: str
    fault: str
    victim: str

    def __str__(self) -> str:
        return f"{self.phase} × {self.fault} × {self.victim}"

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """Return the pairs of values that meet in this cell."""
        return set(itertools.combinations((self.phase, self.fault, self.victim), 2))


SENSELESS: dict[str, Callable[[Cell], bool]] = {
    "no process of a run lives while its job waits": lambda c: (
        c.phase in WAITING and c.fault in (*PROCESS_FAULTS, *LINK_FAULTS)
    ),
    "no rank lives before ranks are started": lambda c: (
        c.phase in ("starting", "pre-flight") and c.fault in PROCESS_FAULTS and c.victim == "rank"
    ),
    "a host has no agent or srun of its own: the coordinator's, a rank's and a spare's are all there are": (
        lambda c: c.fault not in PROCESS_FAULTS and c.victim in ("agent", "srun")
    ),
    "the kernel ends who takes the most memory, which is a rank; the end of another is `killed`": (
        lambda c: c.fault == "out of memory" and c.victim != "rank"
    ),
    "a clock that jumps is seen by programs that start afterwards": lambda c: (
        c.fault == "wrong clock" and c.phase in ("pre-flight", "training", "checkpoint", "ending")
    ),
}
"""Which cells are left out, and why."""


def cells() -> list[Cell]:
    """Return all cells that make sense."""
    every = itertools.starmap(Cell, itertools.product(PHASES, FAULTS, VICTIMS))
    return [cell for cell in every if not any(rule(cell) for rule in SENSELESS.values())]


def cover() -> list[Cell]:
    """Return cells in which every two values that can meet do, each victim equally often; always the same."""
    remaining = cells()
    missing = {pair for cell in remaining for pair in cell.pairs}
    chosen: list[Cell] = []
    struck: Counter[str] = Counter()
    while missing:
        best = max(remaining, key=lambda cell: (len(cell.pairs & missing), -struck[cell.victim]))
        missing -= best.pairs
        struck[best.victim] += 1
        chosen.append(best)
        remaining.remove(best)
    return chosen
