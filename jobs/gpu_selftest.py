"""Test devices, collectives, training and a hang on the GPUs of a run.

    clusterrun check --selftest-gpu

Rank 0 prints lines ``selftest NAME {…}``: ``devices`` (from torch and the driver's program), ``sums``
(all-reduces with a known result), ``rates`` (bus bandwidth by bytes, in GB/s), ``training`` (a short run of
DDP), ``stall`` (the last rank stops on purpose, and the others wait for it).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranks import World, joined, place

SIZES = (1 << 20, 1 << 26, 1 << 30)
ROUNDS, STEPS = 7, 20
LISTINGS = (("nvidia-smi", "-q", "-x"), ("amd-smi", "static", "--json"), ("rocm-smi", "--json", "-a"))
PRIVATE = re.compile(
    r"<(serial|uuid|board_id|board_part_number|module_id|gpu_virtual_id|timestamp)>[^<]*</\1>"
    r"|<process_info>.*?</process_info>|<!DOCTYPE[^>]*>",
    re.DOTALL,
)
IDENTITY = re.compile(
    r"(?i)(\"[^\"]*(?:serial|uuid|unique.?id)[^\"]*\"\s*:\s*)\"[^\"]*\"|((?:GPU|MIG)-)[0-9a-f][0-9a-f-]{7,}"
)
# Most ranks whose sums bfloat16 represents exactly (it is exact up to 256).
MOST_EXACT = 32
# No larger message is tried after one that takes longer.
MOST_SECONDS = 0.05
LONGEST_STALL = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every part in turn. The stall is the last, and it is ended from outside."""
    argparse.ArgumentParser(description="Prove the way on GPUs.").parse_args(arguments)
    world = place(os.environ, "auto")
    tell(world, "devices", devices(world))
    with joined(world):
        world = world if world.grouped else world.in_group()
        tell(world, "sums", {"wrong": wrong_sums(world)})
        tell(world, "rates", rates(world))
        tell(world, "training", trained(world))
        if world.size > 1:
            tell(world, "stall", {"rank": world.size - 1, "at": time.time()})
            stalls_on_purpose() if world.rank == world.size - 1 else dist.all_reduce(ones(world, 4))
            finished(world)


def tell(world: World, name: str, values: object) -> None:
    """Print a line on rank 0 only."""
    if world.leads:
        print(f"selftest {name} {json.dumps(values)}", flush=True)


def devices(world: World) -> dict[str, object]:
    """Return the GPUs of this node, from torch and from the driver's program."""
    gpus = torch.cuda.device_count()
    return {
        "device": world.device.type,
        "backend": world.backend,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus and dist.is_nccl_available() else "",
        "names": [torch.cuda.get_device_name(number) for number in range(gpus)],
        "visible": {name: os.environ[name] for name in os.environ if name.endswith("VISIBLE_DEVICES")},
        "listing": {argv[0]: text for argv in LISTINGS if (text := listing(argv))},
    }


def listing(argv: Sequence[str]) -> str:
    """Return the program's output without anything that identifies a device or user; '' if it is missing."""
    try:
        result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, text=True)
    except subprocess.TimeoutExpired:
        return "no answer within 60 s"
    except OSError:
        return ""
    output = result.stdout if result.returncode == 0 else result.stderr or result.stdout
    text = PRIVATE.sub("", output)
    return IDENTITY.sub(lambda match: f'{match[1]}"-"' if match[1] else f"{match[2]}-", text)


def ones(world: World, size: int) -> torch.Tensor:
    """Return ``size`` bytes of ones on this rank's device."""
    return torch.ones(size // 4, device=world.device)


def finished(world: World) -> None:
    """Wait until the device has finished."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def wrong_sums(world: World) -> list[str]:
    """Sum integers of several types. Return which types were wrong on which rank."""
    wrong = []
    place = torch.arange(4096, dtype=torch.int64) % 7
    right = place * world.size + sum(rank % 3 for rank in range(world.size))
    for kind in (torch.int64, torch.float32, torch.bfloat16):
        if kind is torch.bfloat16 and world.size > MOST_EXACT:
            continue
        sums = (place + world.rank % 3).to(kind).to(world.device)
        dist.all_reduce(sums)
        bad = torch.tensor([int(not torch.equal(sums.cpu(), right.to(kind)))]).to(world.device)
        of_ranks = [torch.zeros_like(bad) for _ in range(world.size)]
        dist.all_gather(of_ranks, bad)
        name = str(kind).removeprefix("torch.")
        wrong += [f"{name} on rank {rank}" for rank, is_wrong in enumerate(of_ranks) if is_wrong.item()]
    return wrong


def rates(world: World) -> dict[str, float]:
    """Return the bus bandwidth in GB/s by size, 0 for a single rank. Stop at a size that takes too long."""
    rate_by_size: dict[str, float] = {}
    for size in SIZES:
        taken = seconds(world, size)
        rate_by_size[str(size)] = round(2 * (world.size - 1) / world.size * size / taken / 1e9, 3)
        slowest = torch.tensor([taken], dtype=torch.float64).to(world.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if slowest.item() > MOST_SECONDS:
            break
    return rate_by_size


def seconds(world: World, size: int) -> float:
    """Return the median time of an all-reduce of ``size`` bytes, after two warm-ups."""
    tensor, taken = ones(world, size), []
    for _ in range(ROUNDS + 2):
        finished(world)
        began = time.perf_counter()
        dist.all_reduce(tensor)
        finished(world)
        taken.append(time.perf_counter() - began)
        tensor.fill_(1.0)
    return max(1e-9, statistics.median(taken[2:]))


def trained(world: World) -> dict[str, object]:
    """Train for a few steps with DDP. Return losses, seconds per step, and whether all weights are equal."""
    torch.manual_seed(world.rank)  # DDP makes the weights equal
    layers = (torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, began = [], time.perf_counter()
    for _ in range(STEPS):
        inputs = torch.randn(64, 256, device=world.device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True) / 16).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - began) / STEPS
    least = torch.stack([part.detach().double().sum() for part in model.parameters()])
    most = least.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return {
        "first": round(losses[0], 4),
        "last": round(losses[-1], 4),
        "seconds": round(seconds, 5),
        "equal": torch.equal(least, most),
    }


def stalls_on_purpose() -> None:
    """Hang. A diagnosis must find the last rank in this function."""
    time.sleep(LONGEST_STALL)


if __name__ == "__main__":
    main()
