"""How long a lab takes: up, a job over every node, down, and the memory of it, for three sizes."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from clusterrun.lab.lab import Lab
from clusterrun.lab.namespaces import wait_for
from clusterrun.lab.needs import free_mib
from clusterrun.lab.spec import LabSpec
from clusterrun.model.errors import ClusterrunError

GPUS = 8
JOB_SECONDS = 300.0
CALM_SECONDS, CALM_MIB = 20.0, 200.0


@dataclass(frozen=True)
class Goal:
    """What issue and README promise for a size; seconds, and GiB."""

    nodes: int
    up: float
    down: float
    memory: float


GOALS = (Goal(4, 1.5, 15, 8), Goal(64, 5, 15, 8), Goal(1250, 90, 15, 8))


def measured(goal: Goal) -> bool:
    """Bring one lab up and down, print what it took; whether all goals were met."""
    lab = Lab(f"bench{os.getpid()}")
    free = free_mib()
    up = took(lambda: lab.up(LabSpec(name=lab.name, nodes=goal.nodes, gpus=GPUS)))
    try:
        memory = (free - free_mib()) / 1024
        words = ["srun", f"-N{goal.nodes}", f"--gpus-per-node={GPUS}", "hostname"]
        began = time.perf_counter()
        reached = len(set(lab.exec(words, timeout=JOB_SECONDS).out.split()))
        job = time.perf_counter() - began
    finally:
        down = took(lab.down)
    print(
        f"{goal.nodes:>5} × {GPUS}: up {up:.2f} s (goal {goal.up:g}), srun reached {reached} in {job:.2f} s, "
        f"down {down:.2f} s (goal {goal.down:g}), {memory:.2f} GiB (goal {goal.memory:g})",
        flush=True,
    )
    # The kernel frees networks in the background: the next size is measured on a calm machine.
    wait_for(lambda: free_mib() > free - CALM_MIB, CALM_SECONDS, 0.1)
    met = up <= goal.up and down <= goal.down and memory <= goal.memory
    return met and reached == goal.nodes


def took(action: object) -> float:
    """Seconds that a call takes."""
    assert callable(action)
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> int:
    """All sizes; 1 when a goal was missed."""
    try:
        met = [measured(goal) for goal in GOALS]
    except ClusterrunError as error:
        print(f"no lab here: {error}")
        return 0
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
