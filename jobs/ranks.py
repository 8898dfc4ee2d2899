"""A process's place among the ranks, from what torchrun sets; its device and its group; knows no model."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """Where this rank stands, and on what it computes."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    device: torch.device
    grouped: bool
    """Whether there is a process group; a rank that no launcher started mostly does without."""

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for all: it prints the progress and writes the checkpoints."""
        return self.rank == 0

    @property
    def backend(self) -> str:
        """The library that carries the gradients, for a reader."""
        if not self.grouped:
            return "none"
        return "nccl" if self.device.type == "cuda" else "gloo"

    def in_group(self) -> World:
        """The same with a process group, be it of one."""
        return replace(self, grouped=True)

    def __str__(self) -> str:
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        return (
            f"rank {self.rank} of {self.size} on {socket.gethostname()}: device {self.device}{threads}, "
            f"backend {self.backend}"
        )


def place(environment: Mapping[str, str], kind: str) -> World:
    """Read the place from the environment; ``kind`` is ``auto``, ``cpu`` or ``cuda``.

    Raises RuntimeError when the environment is half set, or the device asked for is not there.
    """
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing and ("RANK" in environment or "WORLD_SIZE" in environment):
        raise RuntimeError(
            f"a launcher set some of {', '.join(NEEDED)} but not {', '.join(missing)}: "
            "start through a launcher that sets all of them, or with none of them set to train alone"
        )
    numbers = {name: 0 if missing else int(environment[name]) for name in ("RANK", "LOCAL_RANK")}
    size = 1 if missing else int(environment["WORLD_SIZE"])
    local_size = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    device = pick_device(kind, numbers["LOCAL_RANK"], environment.get("CUDA_VISIBLE_DEVICES"))
    return World(numbers["RANK"], numbers["LOCAL_RANK"], size, local_size, device, grouped=not missing)


def pick_device(kind: str, local_rank: int, visible: str | None = None) -> torch.device:
    """The GPU of this local rank where there is one and it is wanted, else the CPU.

    ``visible`` is ``CUDA_VISIBLE_DEVICES``: empty it means no GPU, which HIP does not obey.
    """
    hidden = kind == "auto" and visible == ""
    gpus = 0 if kind == "cpu" or hidden else torch.cuda.device_count()
    if local_rank < gpus:
        return torch.device("cuda", local_rank)
    if kind == "cuda" or gpus:
        host = socket.gethostname()
        raise RuntimeError(
            f"local rank {local_rank} on {host} has no GPU: torch {torch.__version__} sees {gpus}; "
            "start as many ranks per node as it has GPUs, or train with --device cpu"
        )
    return torch.device("cpu")


def share_cores(world: World, environment: Mapping[str, str]) -> None:
    """One thread per rank where several ranks share the cores, unless the user chose."""
    if world.local_size > 1 and "OMP_NUM_THREADS" not in environment:
        torch.set_num_threads(1)


@contextlib.contextmanager
def joined(world: World) -> Iterator[None]:
    """Join the group of all ranks, if there is to be one, and leave it at the end."""
    share_cores(world, os.environ)
    if not world.grouped:
        yield
        return
    store = meeting(os.environ)
    agree_on_device(world, store)
    on_gpu = world.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(world.device)
    dist.init_process_group(
        world.backend,
        store=store,
        rank=world.rank,
        world_size=world.size,
        device_id=world.device if on_gpu else None,
    )
    yield
    # Not after a failure: leaving NCCL in good order can wait for ranks that are gone.
    # What DDP leaves in circles holds the group, and gloo's threads abort the process (about 1 in
    # 30 exits) when they outlive the interpreter: so it is let go first.
    gc.collect()
    dist.destroy_process_group()


def meeting(environment: Mapping[str, str]) -> dist.Store:
    """Where the ranks find each other; a rank that no launcher started finds itself there."""
    if "RANK" not in environment:
        return dist.HashStore()
    store, _, _ = next(rendezvous("env://"))
    return store


def agree_on_device(world: World, store: dist.Store) -> None:
    """Refuse a world of GPU and CPU ranks: it would wait for itself for ever instead of training."""
    if world.leads:
        store.set("device", world.device.type)
    leader = store.get("device").decode()
    if leader != world.device.type:
        mine = f"rank {world.rank} on {socket.gethostname()}"
        raise RuntimeError(
            f"rank 0 computes on {leader}, but {mine} on {world.device.type}: "
            "look why the nodes differ, or train with --device cpu"
        )


def sum_over_ranks(world: World, *numbers: float) -> tuple[float, ...]:
    """Each number, summed over all ranks."""
    total = torch.tensor(numbers, dtype=torch.float64, device=world.device)
    if world.grouped:
        dist.all_reduce(total)
    return tuple(total.tolist())


def least_over_ranks(world: World, number: int) -> int:
    """The smallest of the ranks' numbers."""
    least = torch.tensor(number, device=world.device)
    if world.grouped:
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least.item())


def say(world: World, line: str) -> None:
    """One line for all ranks, from rank 0."""
    if world.leads:
        print(line, flush=True)
