"""Every collective of a process group with backend nccl, with its result compared; run by each rank."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def join(seconds: float = 120) -> torch.device:
    """Form the default group; NCCL connects now."""
    torch.cuda.set_device(RANK)
    device = torch.device("cuda", RANK)
    limit = timedelta(seconds=seconds)
    store = dist.FileStore(os.environ["STORE"], SIZE)
    dist.init_process_group("nccl", store=store, rank=RANK, world_size=SIZE, timeout=limit, device_id=device)
    return device


def expect(name: object, tensor: torch.Tensor, *values: float) -> None:
    assert tensor.flatten().tolist() == [float(value) for value in values], (name, tensor, values)


def every_collective(device: torch.device) -> None:
    ranks, total = range(SIZE), SIZE * (SIZE + 1) // 2

    def full(value: float, count: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((count,), value, device=device, dtype=dtype)

    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for dtype in (*floats, torch.int64, torch.int32, torch.uint8, torch.int8):
        tensor = full(RANK + 1, 1001, dtype)
        dist.all_reduce(tensor)
        expect(dtype, tensor[::1000], total, total)
    product = 1
    for rank in ranks:
        product *= rank + 1
    operations = dist.ReduceOp
    for operation, value in (
        (operations.MAX, SIZE),
        (operations.MIN, 1),
        (operations.AVG, (SIZE + 1) / 2),
        (operations.PRODUCT, product),
    ):
        tensor = full(RANK + 1, 1)
        dist.all_reduce(tensor, operation)
        expect(operation, tensor, value)

    tensor = full(RANK)
    dist.broadcast(tensor, 1)
    expect("broadcast", tensor, 1, 1)
    tensor = full(RANK + 1)
    dist.reduce(tensor, 0)
    if RANK == 0:
        expect("reduce", tensor, total, total)
    parts = [full(-1) for _ in ranks]
    dist.all_gather(parts, full(RANK))
    expect("all_gather", torch.stack(parts)[:, 0], *ranks)
    whole = full(-1, 2 * SIZE)
    dist.all_gather_into_tensor(whole, full(RANK))
    expect("all_gather_into_tensor", whole[::2], *ranks)
    tensor = full(-1)
    dist.reduce_scatter_tensor(tensor, torch.arange(2 * SIZE, device=device).float())
    expect("reduce_scatter_tensor", tensor, SIZE * 2 * RANK, SIZE * (2 * RANK + 1))
    dist.reduce_scatter(tensor, [full(rank) for rank in ranks])
    expect("reduce_scatter", tensor, SIZE * RANK, SIZE * RANK)
    tensor = full(-1, SIZE)
    dist.all_to_all_single(tensor, torch.arange(SIZE, device=device).float() + 10 * RANK)
    expect("all_to_all_single", tensor, *(10 * rank + RANK for rank in ranks))
    dist.all_to_all(parts, [full(10 * RANK + rank) for rank in ranks])
    expect("all_to_all", torch.stack(parts)[:, 0], *(10 * rank + RANK for rank in ranks))
    dist.gather(full(RANK), parts if RANK == 0 else None, 0)
    if RANK == 0:
        expect("gather", torch.stack(parts)[:, 0], *ranks)
    tensor = full(-1)
    dist.scatter(tensor, [full(rank) for rank in ranks] if RANK == 0 else None, 0)
    expect("scatter", tensor, RANK, RANK)

    if RANK == 0:
        dist.send(full(7), 1)
    if RANK == 1:
        dist.recv(tensor, 0)
        expect("recv", tensor, 7, 7)
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    around = [dist.P2POp(dist.isend, full(RANK), after), dist.P2POp(dist.irecv, tensor, before)]
    for work in dist.batch_isend_irecv(around):
        work.wait()
    expect("batch_isend_irecv", tensor, before, before)

    dist.barrier()
    objects: list[object] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in ranks]
    even = dist.new_group(list(ranks)[::2])
    if RANK % 2 == 0:
        tensor = full(1, 1)
        dist.all_reduce(tensor, group=even)
        expect("subgroup", tensor, (SIZE + 1) // 2)
    uneven = [full(-1, rank + 1) for rank in ranks]
    dist.all_gather(uneven, full(RANK, RANK + 1))
    expect("all_gather of uneven sizes", uneven[-1], *[SIZE - 1] * SIZE)
    tensor = full(RANK + 1, 1 << 22)
    dist.all_reduce(tensor)
    expect("16 MB", tensor[:: (1 << 22) - 1], total, total)
