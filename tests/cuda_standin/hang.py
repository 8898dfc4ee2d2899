"""A DDP job with one thing wrong, which the first argument names; the second is the time-out in seconds."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def lose_itself() -> None:
    time.sleep(600)


def main(kind: str, timeout: float) -> None:
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=timeout), device_id=device)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = os.environ.get("CLUSTERRUN_ATTEMPT", "0") == "0"
    for step in itertools.count():
        model(torch.randn(8, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 20 and rank == 1 and first:
            if kind == "hang":
                lose_itself()
            elif kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "memory":
                torch.empty(80 << 30, dtype=torch.uint8, device=device)
        if kind == "sizes":
            dist.all_reduce(torch.ones(5 if rank == 1 else 4, device=device))
        torch.cuda.synchronize()
        if step == 25:
            print("on the way", flush=True)
        if step > 40 and kind in ("nothing", "kill"):
            break
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
