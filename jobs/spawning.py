"""Start the ranks of one machine from one process, with torch.multiprocessing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HOST = "127.0.0.1"


def spawn(work: Callable[..., None], ranks: int, *arguments: object) -> None:
    """Run ``work(*arguments)`` in ``ranks`` processes, each with the environment of its rank.

    Returns when all have ended. A failure ends the other processes and is raised.
    """
    # This process holds the store and its port, so that no other program can take the port.
    store = dist.TCPStore(HOST, 0, None, is_master=True, wait_for_workers=False)
    mp.start_processes(as_rank, (work, ranks, store.port, arguments), nprocs=ranks, start_method="spawn")


def as_rank(rank: int, work: Callable[..., None], ranks: int, port: int, rest: tuple[object, ...]) -> None:
    """Run ``work`` as a rank."""
    os.environ.update(environment(rank, ranks, port))
    work(*rest)


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set."""
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": HOST,
        "MASTER_PORT": port,
        # Every rank uses the store of the starting process.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in values.items()}


def how_many(requested: int | None, surrounding: Mapping[str, str], device: str) -> int:
    """Return the number of ranks: as requested, as the launcher sets it, or one per GPU or core.

    Raises RuntimeError if a launcher has started ranks already, or if there are several nodes.
    """
    if "RANK" in surrounding:
        raise RuntimeError(
            "--strategy ddp-spawn starts its own ranks, and a launcher has started one per rank already: "
            "start it once per node (clusterrun submit --per-node), or use --strategy ddp"
        )
    nodes = int(surrounding.get("NNODES", "1"))
    if nodes > 1:
        raise RuntimeError(
            f"--strategy ddp-spawn runs on one node, and this run has {nodes}: "
            "use --strategy ddp, started once per rank (without --per-node)"
        )
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    return requested or int(surrounding.get("NPROC_PER_NODE", "0")) or gpus or len(os.sched_getaffinity(0))
