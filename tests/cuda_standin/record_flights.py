"""Record torch's flight records of healthy and of hanging jobs, as tests/recorded/flight-records holds them.

    VENV/bin/python record_flights.py FILE

Every rank writes its records at the same moment, while it trains or hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(__file__).resolve().parent
# Seconds from the meeting of the ranks to their dump, and then to their end.
RUN_SECONDS, DUMP_SECONDS = 3.0, 4.0
MOST_RECORDS = 16
FIELDS = (
    *("process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "input_sizes"),
    *("input_dtypes", "state", "retired", "time_created_ns", "time_discovered_started_ns", "is_p2p"),
)
Step = Callable[[], object]


def main(kind: str, output: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    limit = timedelta(seconds=100)
    store = dist.FileStore(os.environ["STORE"], size)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=limit, device_id=device)
    step = KINDS[kind][1](rank, size, device)
    step()
    dist.barrier()
    moment = torch.tensor([time.time() + RUN_SECONDS], dtype=torch.float64, device=device)
    dist.broadcast(moment, 0)
    dump_at = moment.item()
    threading.Thread(target=dump, args=(dump_at, output)).start()
    while True:
        step()
        time.sleep(0.02)


def dump(dump_at: float, output: str) -> None:
    time.sleep(max(0.0, dump_at - time.time()))
    c10d = sys.modules["torch._C._distributed_c10d"]
    records = json.loads(c10d._dump_nccl_trace_json(True, False))
    records["entries"] = [
        {name: entry.get(name) for name in FIELDS} for entry in records["entries"][-MOST_RECORDS:]
    ]
    Path(output).write_text(json.dumps(records))
    time.sleep(DUMP_SECONDS)
    os._exit(0)


# --- what a rank does: each returns the step that it repeats ---


def ddp(rank: int, size: int, device: torch.device) -> Step:
    layers = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(layers, device_ids=[rank])
    return lambda: model(torch.ones(4, 32, device=device)).sum().backward()


def fsdp(rank: int, size: int, device: torch.device) -> Step:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(torch.nn.Linear(32, 32).to(device), device_id=device)
    return lambda: model(torch.ones(4, 32, device=device)).sum().backward()


def mesh(rank: int, size: int, device: torch.device) -> Step:
    """Train with data-parallel and tensor-parallel groups."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    part, whole = torch.ones(8, device=device), torch.ones(16, device=device)

    def step() -> None:
        dist.all_gather_into_tensor(whole, part, group=row)
        dist.reduce_scatter_tensor(part, whole, group=row)
        dist.all_reduce(part, group=column)

    return step


def pipeline(rank: int, size: int, device: torch.device) -> Step:
    tensor, received = torch.ones(8, device=device), torch.ones(8, device=device)

    def step() -> None:
        sends = [dist.P2POp(dist.isend, tensor, rank + 1)] if rank + 1 < size else []
        receives = [dist.P2POp(dist.irecv, received, rank - 1)] if rank else []
        for work in dist.batch_isend_irecv([*sends, *receives]):
            work.wait()
        dist.all_reduce(tensor)

    return step


def uneven(rank: int, size: int, device: torch.device) -> Step:
    """Train with sizes that differ between ranks, as experts and gathered objects have them."""

    def step() -> None:
        counts = [other + 1 for other in range(size)]
        sent = torch.ones(size * (rank + 1), device=device)
        received = torch.ones(sum(counts), device=device)
        dist.all_to_all_single(received, sent, counts, [rank + 1] * size)
        dist.all_gather_object([None] * size, "x" * (100 * rank))

    return step


def threads(rank: int, size: int, device: torch.device) -> Step:
    """Train with a thread that saves in a group of its own."""
    group = dist.new_group(list(range(size)))

    def save() -> None:
        torch.cuda.set_device(rank)
        while True:
            dist.all_reduce(torch.ones(3, device=device), group=group)
            time.sleep(0.3)

    threading.Thread(target=save, daemon=True).start()
    tensor = torch.ones(8, device=device)
    return lambda: dist.all_reduce(tensor)


def after(healthy: Step, sick: Step) -> Step:
    steps = iter(range(1 << 30))
    return lambda: (healthy if next(steps) < 5 else sick)()


def absent(rank: int, size: int, device: torch.device) -> Step:
    tensor = torch.ones(8, device=device)

    def wrong() -> None:
        if rank == 1:
            time.sleep(100)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()

    return after(lambda: dist.all_reduce(tensor), wrong)


def order(rank: int, size: int, device: torch.device) -> Step:
    tensor, large = torch.ones(8, device=device), torch.ones(1 << 22, device=device)

    def wrong() -> None:
        if rank == 1:
            dist.all_gather([torch.empty_like(tensor) for _ in range(size)], tensor)
        else:
            dist.all_reduce(large)
        torch.cuda.synchronize()
        time.sleep(100)

    return after(lambda: dist.all_reduce(tensor), wrong)


def extra(rank: int, size: int, device: torch.device) -> Step:
    """Play the example of torch's tutorial: rank 0 reduces a tensor that the others forgot."""
    tensor, forgotten = torch.ones(3, 4, device=device), torch.ones(4, 1 << 20, device=device)

    def wrong() -> None:
        if rank == 0:
            dist.all_reduce(forgotten)
        for _ in range(2):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        time.sleep(100)

    return after(lambda: dist.all_reduce(tensor), wrong)


# The number of ranks and the step of each, by name.
KINDS: dict[str, tuple[int, Callable[[int, int, torch.device], Step]]] = {
    "ddp": (2, ddp),
    "fsdp": (2, fsdp),
    "mesh": (4, mesh),
    "pipeline": (3, pipeline),
    "uneven": (3, uneven),
    "threads": (2, threads),
    "absent": (3, absent),
    "order": (3, order),
    "extra": (3, extra),
}


def recorded(kind: str) -> list[object]:
    """Run the ranks of a job and return the records of each."""
    size = KINDS[kind][0]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "CUDA_STANDIN_GPUS": str(size),
            "CUDA_STANDIN_MEMORY_MIB": "512",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "STORE": f"{folder}/store",
            "TORCH_FR_BUFFER_SIZE": "200",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "200",
            "WORLD_SIZE": str(size),
        }
        children = [
            subprocess.Popen(
                [sys.executable, __file__, kind, f"{folder}/{rank}.json"],
                cwd=FOLDER,
                env={**os.environ, **settings, "RANK": str(rank)},
            )
            for rank in range(size)
        ]
        for child in children:
            child.wait(300)
        return [json.loads(Path(f"{folder}/{rank}.json").read_text()) for rank in range(size)]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(sys.argv[1], sys.argv[2])
    recordings = {kind: recorded(kind) for kind in KINDS}
    Path(sys.argv[1]).write_text(
        json.dumps({"torch": torch.__version__, "jobs": recordings}, separators=(",", ":")) + "\n"
    )
