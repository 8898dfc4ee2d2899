"""torch's real ProcessGroupNCCL: every collective, DDP and FSDP, and what its watchdog says of each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_standin.conftest import RunRanks

WATCHED = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_ENABLE_MONITORING": "0"}
ALL_REDUCE = """
import collectives, torch, torch.distributed as dist
device = collectives.join(seconds={seconds})
tensor = torch.ones(8, device=device)
dist.all_reduce(tensor)
torch.cuda.synchronize()
print("sum", tensor.tolist()[:2], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 4])
def test_every_collective_gives_the_right_result(run_ranks: RunRanks, size: int) -> None:
    code = (
        "import collectives as c; c.every_collective(c.join()); c.dist.destroy_process_group(); print('done')"
    )
    for rank in run_ranks(size, code):
        assert (rank.code, rank.output.strip().splitlines()[-1]) == (0, "done"), rank.output


def test_ddp_and_both_fsdps_train(run_ranks: RunRanks) -> None:
    code = """
import collectives, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
device = collectives.join()
torch.manual_seed(0)
def model():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
losses = {}
for kind in ("ddp", "fsdp", "fsdp2"):
    trained = model()
    if kind == "ddp":
        trained = DistributedDataParallel(trained, device_ids=[device.index])
    elif kind == "fsdp":
        trained = FullyShardedDataParallel(trained, device_id=device)
    else:
        fully_shard(trained)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    inputs = torch.linspace(-1, 1, 64, device=device).view(4, 16)
    for step in range(10):
        loss = (trained(inputs) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.setdefault(kind, []).append(loss.item())
    assert losses[kind][-1] < losses[kind][0] / 2, losses
dist.destroy_process_group()
print("trained")
"""
    for rank in run_ranks(2, code):
        assert (rank.code, rank.output.strip().splitlines()[-1]) == (0, "trained"), rank.output


def test_a_wrong_sum_reaches_every_rank(run_ranks: RunRanks) -> None:
    for rank in run_ranks(2, ALL_REDUCE.format(seconds=60), CUDA_STANDIN_FAULTS="wrong-sum@rank0"):
        assert "sum [3.0, 2.0]" in rank.output


def test_a_slow_rank_delays_and_harms_nothing(run_ranks: RunRanks) -> None:
    for rank in run_ranks(2, ALL_REDUCE.format(seconds=60), CUDA_STANDIN_FAULTS="slow@rank1=2"):
        assert "sum [2.0, 2.0]" in rank.output


def test_a_hang_ends_by_the_watchdog_with_flight_records(run_ranks: RunRanks, tmp_path: Path) -> None:
    dump = f"{tmp_path}/flight"
    names = {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dump,
        "TORCH_FR_DUMP_TEMP_FILE": dump,
    }
    sizes = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "TORCH_FR_BUFFER_SIZE": "100"}
    variables = {**WATCHED, **names, **sizes, "TORCH_NCCL_ENABLE_MONITORING": "1"}
    ranks = run_ranks(2, ALL_REDUCE.format(seconds=8), CUDA_STANDIN_FAULTS="hang@rank1", **variables)
    for rank in ranks:
        assert rank.code not in (0, None), rank.output
    assert "Watchdog caught collective operation timeout" in ranks[0].output
    assert "OpType=ALLREDUCE" in ranks[0].output
    assert len(list(tmp_path.glob("flight*"))) == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("remote-error@rank1", "remote process exited or there was a network error"),
        ("async-error@rank1", "internal error"),
    ],
)
def test_an_asynchronous_error_ends_the_rank(run_ranks: RunRanks, fault: str, message: str) -> None:
    ranks = run_ranks(2, ALL_REDUCE.format(seconds=20), CUDA_STANDIN_FAULTS=fault, **WATCHED)
    assert ranks[1].code not in (0, None), ranks[1].output
    assert message in ranks[1].output


def test_an_error_in_init_is_raised(run_ranks: RunRanks) -> None:
    faults = {"CUDA_STANDIN_FAULTS": "init-error@rank1", "NCCL_DEBUG": "WARN"}
    ranks = run_ranks(2, ALL_REDUCE.format(seconds=20), limit=60, **faults)
    assert ranks[1].code == 1
    assert "ncclUnhandledCudaError" in ranks[1].output
    assert "NCCL WARN Cuda failure 2 'out of memory'" in ranks[1].output


@pytest.mark.parametrize("fault", ["never-arrives@rank1", "hang-init@rank1"])
def test_a_rank_that_does_not_come_lets_the_others_wait(run_ranks: RunRanks, fault: str) -> None:
    ranks = run_ranks(2, ALL_REDUCE.format(seconds=60), limit=15, CUDA_STANDIN_FAULTS=fault)
    assert [rank.code for rank in ranks] == [None, None]


def test_two_ranks_on_one_gpu_are_refused(run_ranks: RunRanks) -> None:
    code = """
import os, torch, torch.distributed as dist
store = dist.FileStore(os.environ["STORE"], 2)
torch.cuda.set_device(0)
dist.init_process_group("nccl", store=store, rank=int(os.environ["RANK"]), world_size=2)
dist.all_reduce(torch.ones(1, device="cuda:0"))
"""
    for rank in run_ranks(2, code, limit=60, NCCL_DEBUG="WARN"):
        assert rank.code == 1, rank.output
        assert "Duplicate GPU detected" in rank.output


def test_different_sizes_hang_only_if_they_take_different_numbers_of_slots(run_ranks: RunRanks) -> None:
    code = ALL_REDUCE.replace("torch.ones(8,", "torch.ones({sizes}[collectives.RANK],")
    small = run_ranks(2, code.format(seconds=60, sizes=[8, 10]))
    assert [rank.code for rank in small] == [0, 0]
    large = run_ranks(2, code.format(seconds=8, sizes=[8, 1 << 20]), **WATCHED)
    assert large[1].code not in (0, None), large[1].output
