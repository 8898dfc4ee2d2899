"""Measure the all-reduce of the ranks of a run, and print their hardware.

    clusterrun submit --nodes 2 --gpus 8 jobs/allreduce.py --groups 2,4,8,16

Rank 0 prints one line, ``all-reduce {…}``, with two values for each group of the first n ranks: the
seconds of a very small all-reduce (``latency``), and the bytes per second that each rank sends
(``bandwidth``; like the bus bandwidth of nccl-tests: 2 (n - 1) / n of the data per time).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ranks import World, joined, place

# Bytes of a message whose time is only latency.
SMALL = 1024
LEAST_LATENCY = 1e-7


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one group after the other and print the results."""
    options = parse(arguments)
    world = place(os.environ, options.device)
    with joined(world):
        sizes = [int(word) for word in options.groups.split(",") if 1 < int(word) <= world.size]
        groups = [measured(world, size, options) for size in sizes] if world.grouped else []
        if world.leads:
            print("all-reduce " + json.dumps({**surroundings(world), "groups": groups}), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. A wrong option ends the process with code 2."""
    reader = argparse.ArgumentParser(description="Measure all-reduce among the ranks of a run.")
    reader.add_argument("--groups", default="2", metavar="N,…", help="numbers of ranks to measure with")
    reader.add_argument("--megabytes", type=float, default=16.0, help="size of the large message")
    reader.add_argument("--rounds", type=int, default=5, help="times that each size is measured")
    reader.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return reader.parse_args(arguments)


def measured(world: World, size: int, options: argparse.Namespace) -> dict[str, float]:
    """Return latency and bandwidth of the first ``size`` ranks. The values of other ranks mean nothing."""
    group = dist.new_group(list(range(size)))
    small = large = 0.0
    bulk = int(options.megabytes * 2**20)
    if world.rank < size:
        small = seconds(world, group, SMALL, options.rounds * 4)
        large = seconds(world, group, bulk, options.rounds)
    dist.barrier()
    latency = max(small, LEAST_LATENCY)
    sent = 2 * (size - 1) / size * bulk
    return {"ranks": size, "latency": latency, "bandwidth": sent / max(large - latency, LEAST_LATENCY)}


def seconds(world: World, group: dist.ProcessGroup, size: int, rounds: int) -> float:
    """Return the median time of an all-reduce of ``size`` bytes, after one warm-up."""
    tensor = torch.ones(size // 4, device=world.device)
    taken = []
    for _ in range(rounds + 1):
        dist.barrier(group)
        began = now(world)
        dist.all_reduce(tensor, group=group)
        taken.append(now(world) - began)
        tensor.fill_(1.0)
    return statistics.median(taken[1:])


def now(world: World) -> float:
    """Wait for the device. Return the time in seconds."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter()


def surroundings(world: World) -> dict[str, object]:
    """Return the hardware and software of this rank."""
    on_gpu = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if on_gpu else "cpu",
        "processor": processor(),
        "torch": torch.__version__,
        "backend": world.backend,
        "cores": len(os.sched_getaffinity(0)),
    }


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


if __name__ == "__main__":
    main()
