"""Find this process's rank, device and process group, from the variables that torchrun sets."""

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
    """The place of this rank among the ranks, and its device."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    device: torch.device
    grouped: bool  # there is a process group; usually not without a launcher

    @property
    def leads(self) -> bool:
        """Return whether this rank prints the progress and writes the checkpoints."""
        return self.rank == 0

    @property
    def backend(self) -> str:
        """Return the name of the library that sends the gradients."""
        if not self.grouped:
            return "none"
        return "nccl" if self.device.type == "cuda" else "gloo"

    def in_group(self) -> World:
        """Return the same place with a process group, even for a single rank."""
        return replace(self, grouped=True)

    def __str__(self) -> str:
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        return (
            f"rank {self.rank} of {self.size} on {socket.gethostname()}: device {self.device}{threads}, "
            f"backend {self.backend}"
        )


def place(environment: Mapping[str, str], kind: str) -> World:
    """Return the place from the environment. ``kind`` is ``auto``, ``cpu`` or ``cuda``.

    Raises RuntimeError if variables are missing, or if the requested device does not exist.
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
    """Return the GPU of this local rank, or the CPU if there are no GPUs or ``kind`` is ``cpu``.

    ``visible`` is ``CUDA_VISIBLE_DEVICES``. If it is empty no GPU is used; HIP ignores that by itself.
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
    """Use one thread per rank if several ranks share the cores and OMP_NUM_THREADS is not set."""
    if world.local_size > 1 and "OMP_NUM_THREADS" not in environment:
        torch.set_num_threads(1)


@contextlib.contextmanager
def joined(world: World) -> Iterator[None]:
    """Join the group of all ranks if there is one. Leave it at the end."""
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
    # Not after a failure: NCCL may wait here for ranks that have ended.
    # Reference cycles of DDP hold the group. Threads of gloo that outlive the interpreter abort the
    # process (about 1 exit in 30), so the cycles are collected first.
    gc.collect()
    dist.destroy_process_group()


def meeting(environment: Mapping[str, str]) -> dist.Store:
    """Return the store of all ranks, or a store of its own for a rank without a launcher."""
    if "RANK" not in environment:
        return dist.HashStore()
    store, _, _ = next(rendezvous("env://"))
    return store


def agree_on_device(world: World, store: dist.Store) -> None:
    """Raise RuntimeError if some ranks use GPUs and some CPUs: they would wait for each other forever."""
    if world.leads:
        store.set("device", world.device.type)
    leader = store.get("device").decode()
    if leader != world.device.type:
        this_rank = f"rank {world.rank} on {socket.gethostname()}"
        raise RuntimeError(
            f"rank 0 computes on {leader}, but {this_rank} on {world.device.type}: "
            "find out why the nodes differ, or train with --device cpu"
        )


def sum_over_ranks(world: World, *numbers: float) -> tuple[float, ...]:
    """Return the sum of each number over all ranks."""
    total = torch.tensor(numbers, dtype=torch.float64, device=world.device)
    if world.grouped:
        dist.all_reduce(total)
    return tuple(total.tolist())


def least_over_ranks(world: World, number: int) -> int:
    """Return the smallest number of all ranks."""
    least = torch.tensor(number, device=world.device)
    if world.grouped:
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least.item())


def say(world: World, line: str) -> None:
    """Print a line on rank 0 only."""
    if world.leads:
        print(line, flush=True)
