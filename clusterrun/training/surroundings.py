"""Where a training process stands: its run, attempt and rank, from the environment.

The names are those that `clusterrun.model` gives (a test compares them): this package imports nothing of
ours, so that the folder can be copied beside a script.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

RUN_DIR_VARIABLE = "CLUSTERRUN_RUN_DIR"
ATTEMPT_VARIABLES = ("CLUSTERRUN_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")
"""The first that is set says how often the ranks were started before: torchrun counts too."""


def _file(name: str) -> property:
    """A file of this attempt."""
    return property(lambda place: os.path.join(place.folder, name))


@dataclass(frozen=True)
class Surroundings:
    """One process among the ranks; outside of clusterrun ``run_dir`` is empty."""

    run_dir: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1

    @property
    def folder(self) -> str:
        return os.path.join(self.run_dir, "attempts", f"{self.attempt:03d}")

    notice = _file("notice.json")
    progress = _file("progress.json")
    results = _file("results.json")

    @property
    def save_now(self) -> str:
        """Made by whoever wants a checkpoint."""
        return os.path.join(self.run_dir, "save_now")

    def newest_attempt(self) -> int:
        """The highest attempt that has begun, as far as the run directory can be read; at least our own."""
        if not self.run_dir:
            return self.attempt
        try:
            names = os.listdir(os.path.dirname(self.folder))
        except OSError:  # a run directory that is away for a while proves nothing
            return self.attempt
        return max([self.attempt, *(int(name) for name in names if name.isdigit())])


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """What the launcher has left in the environment."""
    said = [environment[name] for name in ATTEMPT_VARIABLES if environment.get(name, "").isdigit()]
    rank, world = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return Surroundings(
        environment.get(RUN_DIR_VARIABLE, ""),
        int(said[0]) if said else 0,
        int(rank) if rank.isdigit() else 0,
        max(1, int(world)) if world.isdigit() else 1,
    )
