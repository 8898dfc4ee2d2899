"""How long a lab takes: up, a job over every node, down, and the memory of it, for three sizes."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from clusterrun import proc
from clusterrun.lab.lab import Lab
from clusterrun.lab.namespaces import wait_for
from clusterrun.lab.spec import LabSpec
from clusterrun.model.errors import ClusterrunError

GPUS = 8
JOB_SECONDS = 300.0
CALM_SECONDS, CALM_GIB = 20.0, 0.2


@dataclass(frozen=True)
class Goal:
    """The limits for a size, in seconds and GiB; ``rounds``: number of measurements."""

    nodes: int
    rounds: int
    up: float
    down: float = 15.0
    memory: float = 8.0


GOALS = (Goal(4, 5, up=1.5), Goal(64, 3, up=5), Goal(1250, 1, up=90))


@dataclass(frozen=True)
class Took:
    """One lab: seconds of its up, of a job over all nodes, of its down; GiB; nodes that the job reached."""

    up: float
    job: float
    down: float
    memory: float
    reached: int


def once(nodes: int) -> Took:
    """Bring one lab up and down."""
    lab = Lab(f"bench{os.getpid()}")
    free = free_gib()
    up = seconds(lambda: lab.up(LabSpec(name=lab.name, nodes=nodes, gpus=GPUS)))
    try:
        memory = free - free_gib()
        command = ["srun", f"-N{nodes}", f"--gpus-per-node={GPUS}", "hostname"]
        began = time.perf_counter()
        reached = len(set(lab.exec(command, timeout=JOB_SECONDS).out.split()))
        job = time.perf_counter() - began
    finally:
        down = seconds(lambda: lab.down())
    # The kernel frees networks in the background: the next one is measured on a calm machine.
    wait_for(lambda: free_gib() > free - CALM_GIB, CALM_SECONDS, 0.1)
    return Took(up, job, down, memory, reached)


def free_gib() -> float:
    """Return the memory for new processes, in GiB."""
    return proc.memory()[1] / 2**30


def seconds(action: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def met(goal: Goal) -> bool:
    """Measure a size and print the medians; whether all goals were met."""
    rounds = [once(goal.nodes) for _ in range(goal.rounds)]
    up, job, down, memory = (
        statistics.median(getattr(measured, name) for measured in rounds)
        for name in ("up", "job", "down", "memory")
    )
    reached = min(measured.reached for measured in rounds)
    print(
        f"{goal.nodes:>5} nodes × {GPUS}: up {up:.2f} s (goal {goal.up:g}) · srun reached {reached} "
        f"in {job:.2f} s · down {down:.2f} s (goal {goal.down:g}) · {memory:.2f} GiB (goal {goal.memory:g}) "
        f"· median of {goal.rounds}, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return up <= goal.up and down <= goal.down and memory <= goal.memory and reached == goal.nodes


def main() -> int:
    """Measure all sizes. Return 1 if a goal was missed."""
    try:
        return int(not all([met(goal) for goal in GOALS]))  # noqa: C419 (all are to be measured)
    except ClusterrunError as error:
        print(f"no lab here: {error}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
