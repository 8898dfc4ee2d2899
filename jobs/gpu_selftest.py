"""Proves the way from devices to a hang on the GPUs of a run; knows no clusterrun.

    clusterrun check --selftest-gpu

Rank 0 prints lines ``selftest NAME {…}``: ``devices`` (what torch and the driver's program say), ``sums``
(all-reduces whose result is known), ``rates`` (bus bandwidth by bytes, in GB/s), ``training`` (a short run of
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
MOST_EXACT = 32
"""Ranks up to which bfloat16, exact below 257, can hold the sums."""
MOST_SECONDS = 0.05
"""For one message: a larger one is not tried where that takes longer."""
LONGEST_STALL = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Every part in turn; the stall comes last and is ended from outside."""
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
    """One line of rank 0."""
    if world.leads:
        print(f"selftest {name} {json.dumps(values)}", flush=True)


def devices(world: World) -> dict[str, object]:
    """What torch sees on this node, and what the driver's own program says of it."""
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
        "listing": {argv[0]: said for argv in LISTINGS if (said := listing(argv))},
    }


def listing(argv: Sequence[str]) -> str:
    """What the program prints, but for what identifies a device or its users; empty where it is not here."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, text=True)
    except subprocess.TimeoutExpired:
        return "no answer within 60 s"
    except OSError:
        return ""
    said = PRIVATE.sub("", done.stdout if done.returncode == 0 else done.stderr or done.stdout)
    return IDENTITY.sub(lambda match: f'{match[1]}"-"' if match[1] else f"{match[2]}-", said)


def ones(world: World, size: int) -> torch.Tensor:
    """So many bytes of ones on this rank's device."""
    return torch.ones(size // 4, device=world.device)


def finished(world: World) -> None:
    """Wait for what was queued on the device."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def wrong_sums(world: World) -> list[str]:
    """All-reduces of integers whose sum every rank can compute: which types were wrong, on which rank."""
    wrong = []
    place = torch.arange(4096, dtype=torch.int64) % 7
    right = place * world.size + sum(rank % 3 for rank in range(world.size))
    for kind in (torch.int64, torch.float32, torch.bfloat16):
        if kind is torch.bfloat16 and world.size > MOST_EXACT:
            continue
        found = (place + world.rank % 3).to(kind).to(world.device)
        dist.all_reduce(found)
        bad = torch.tensor([int(not torch.equal(found.cpu(), right.to(kind)))]).to(world.device)
        of_ranks = [torch.zeros_like(bad) for _ in range(world.size)]
        dist.all_gather(of_ranks, bad)
        name = str(kind).removeprefix("torch.")
        wrong += [f"{name} on rank {rank}" for rank, one in enumerate(of_ranks) if one.item()]
    return wrong


def rates(world: World) -> dict[str, float]:
    """Bus bandwidth in GB/s by size, up to what a slow network sums in time; 0 on a rank that is alone."""
    found: dict[str, float] = {}
    for size in SIZES:
        taken = seconds(world, size)
        found[str(size)] = round(2 * (world.size - 1) / world.size * size / taken / 1e9, 3)
        slowest = torch.tensor([taken], dtype=torch.float64).to(world.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if slowest.item() > MOST_SECONDS:
            break
    return found


def seconds(world: World, size: int) -> float:
    """The median time of an all-reduce of ``size`` bytes, after two that warm up."""
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
    """A short run of DDP: first and last loss, seconds a step, whether all ranks have the same weights."""
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
    """Where the last rank stands when somebody looks for it."""
    time.sleep(LONGEST_STALL)


if __name__ == "__main__":
    main()
