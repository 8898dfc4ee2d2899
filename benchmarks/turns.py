"""Train a few steps on request, so that several launches can be measured in turn.

    turns.py SOCKET NAME STEPS [options of train.py]

Rank 0 sends NAME to SOCKET. For each line that it receives all ranks run STEPS steps, and rank 0 answers
with the seconds of wall time, and of CPU time of all ranks.
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


def serve(options: Any, world: Any, steps: int, requests: TextIO | None) -> None:
    """Train on each request until the connection ends."""
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
    while requested(requests):
        seconds, own = take(steps)
        if requests:
            requests.write(f"{seconds} {own}\n")
            requests.flush()


def requested(requests: TextIO | None) -> bool:
    """Wait for a request to rank 0. Return on all ranks whether there is one."""
    go = torch.tensor([int(bool(requests.readline())) if requests else 0])
    dist.broadcast(go, 0)
    return bool(go.item())


def connect(path: str, name: str) -> TextIO:
    """Connect to the benchmark and send the name of this launch."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    requests = link.makefile("rw")
    requests.write(f"{name}\n")
    requests.flush()
    return requests


if __name__ == "__main__":
    main()
