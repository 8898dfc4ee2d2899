"""Read the run, attempt and rank of a training process from the environment.

The names equal those in `clusterrun.model` (a test compares them). This package imports no other part of
clusterrun, so that the folder can be copied beside a script.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

RUN_DIR_VARIABLE = "CLUSTERRUN_RUN_DIR"
# The first variable that is set holds the number of earlier starts of the ranks. torchrun counts them too.
ATTEMPT_VARIABLES = ("CLUSTERRUN_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True)
class Surroundings:
    """One process among the ranks. ``run_dir`` is '' outside of clusterrun."""

    run_dir: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1

    @property
    def folder(self) -> str:
        return os.path.join(self.run_dir, "attempts", f"{self.attempt:03d}")

    @property
    def notice(self) -> str:
        return os.path.join(self.folder, "notice.json")

    @property
    def progress(self) -> str:
        return os.path.join(self.folder, "progress.json")

    @property
    def results(self) -> str:
        return os.path.join(self.folder, "results.json")

    @property
    def save_now(self) -> str:
        """Return the file that requests a checkpoint."""
        return os.path.join(self.run_dir, "save_now")

    def newest_attempt(self) -> int:
        """Return the highest attempt in the run directory; at least this one.

        If the directory cannot be read, return this one.
        """
        if not self.run_dir:
            return self.attempt
        try:
            names = os.listdir(os.path.dirname(self.folder))
        except OSError:  # an unreachable run directory proves nothing
            return self.attempt
        return max([self.attempt, *(int(name) for name in names if name.isdigit())])


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """Return the values that the launcher set in the environment."""
    attempts = [environment[name] for name in ATTEMPT_VARIABLES if environment.get(name, "").isdigit()]
    rank, world = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return Surroundings(
        environment.get(RUN_DIR_VARIABLE, ""),
        int(attempts[0]) if attempts else 0,
        int(rank) if rank.isdigit() else 0,
        max(1, int(world)) if world.isdigit() else 1,
    )
