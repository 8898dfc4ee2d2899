"""Starts the ranks of one machine from one process, as torch.multiprocessing does; knows no training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HOST = "127.0.0.1"


def spawn(work: Callable[..., None], ranks: int, *arguments: object) -> None:
    """Run ``work(*arguments)`` in so many processes, each with the environment of its rank.

    Returns when all have ended; the first that fails ends the others and is raised here.
    """
    # The store lives in this process and its port is the kernel's choice: nothing takes it in between.
    store = dist.TCPStore(HOST, 0, None, is_master=True, wait_for_workers=False)
    mp.start_processes(as_rank, (work, ranks, store.port, arguments), nprocs=ranks, start_method="spawn")


def as_rank(rank: int, work: Callable[..., None], ranks: int, port: int, rest: tuple[object, ...]) -> None:
    """One of the processes."""
    os.environ.update(environment(rank, ranks, port))
    work(*rest)


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would set for it."""
    placed = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": HOST,
        "MASTER_PORT": port,
        # So that every rank asks the starting process for its store, instead of holding one.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in placed.items()}


def how_many(wanted: int | None, surrounding: Mapping[str, str], device: str) -> int:
    """The ranks to start: as asked, else as the launcher says, else one per GPU, else one per core.

    Raises RuntimeError where a launcher has started ranks already, or there are several nodes.
    """
    if "RANK" in surrounding:
        raise RuntimeError(
            "--strategy ddp-spawn starts its own ranks, and a launcher has started one per rank already: "
            "start it once per node (clusterrun submit --per-node), or take --strategy ddp"
        )
    nodes = int(surrounding.get("NNODES", "1"))
    if nodes > 1:
        raise RuntimeError(
            f"--strategy ddp-spawn knows one node only, and this run has {nodes}: "
            "take --strategy ddp, started once per rank (without --per-node)"
        )
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    return wanted or int(surrounding.get("NPROC_PER_NODE", "0")) or gpus or len(os.sched_getaffinity(0))
