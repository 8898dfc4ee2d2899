"""Ranks that train a few steps whenever they are told to: launched several times, for turns.

    turns.py SOCKET NAME STEPS [options of train.py]

Rank 0 says NAME to SOCKET; for each line that comes back all ranks take STEPS steps, and rank 0 answers
with the seconds these took: on the wall, and of CPU time of all ranks.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "jobs"))

WARM = 30


def main() -> None:
    import options as command_line
    from ranks import joined, place

    path, name, steps, *rest = sys.argv[1:]
    options = command_line.parse(["--device", "cpu", *rest])
    world = place(os.environ, "cpu").in_group()
    with joined(world):
        serve(options, world, int(steps), connect(path, name) if world.leads else None)


def serve(options: Any, world: Any, steps: int, told: TextIO | None) -> None:
    """Train in turns until no more are wanted."""
    from building import build
    from dealing import Dealer
    from strategies import chosen
    from tasks import TASKS
    from train import step

    trainer = build(options, world, chosen("ddp", world, 0), TASKS[options.model](torch.float32), None)
    dealer = Dealer(trainer.task.training, 0, world.rank, world.size, False)
    batches = trainer.batches.steps(0, 1 << 40)

    def take(count: int) -> tuple[float, float]:
        wall, own = time.perf_counter(), time.process_time()
        for _ in range(count):
            step(trainer, dealer[next(batches)])
        taken = torch.tensor([time.process_time() - own], dtype=torch.float64)
        seconds = time.perf_counter() - wall
        dist.all_reduce(taken)
        return seconds, taken.item()

    take(WARM)
    while wanted(told):
        seconds, own = take(steps)
        if told:
            told.write(f"{seconds} {own}\n")
            told.flush()


def wanted(told: TextIO | None) -> bool:
    """Whether rank 0 was told to take another turn; the same on all ranks."""
    go = torch.tensor([int(bool(told.readline())) if told else 0])
    dist.broadcast(go, 0)
    return bool(go.item())


def connect(path: str, name: str) -> TextIO:
    """A line of words to the one who says when."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    told = link.makefile("rw")
    told.write(f"{name}\n")
    told.flush()
    return told


if __name__ == "__main__":
    main()
