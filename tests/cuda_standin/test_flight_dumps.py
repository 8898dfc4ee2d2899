"""The flight records that torch's NCCL part writes when somebody asks by its pipe, as `diagnose JOB` does."""

from __future__ import annotations

from pathlib import Path

from tests.cuda_standin.conftest import RunRanks

HANGS = """
import os, threading, time, torch, torch.distributed as dist
from clusterrun.diagnosis.flight_dump import groups_and_records
from clusterrun.diagnosis.job_looks import RankName
from clusterrun.monitor.job_processes import RankProcess
from clusterrun.monitor.torch_dumps import flight_dumps

rank = int(os.environ["RANK"])

def look():
    until = time.monotonic() + 120
    dumps = {}
    while not dumps and time.monotonic() < until:
        dumps = flight_dumps([RankProcess(RankName("RANK", rank, 2), os.getpid(), dict(os.environ))])
    groups, records = groups_and_records(dumps.get(os.getpid(), {}), 2, 2)
    print([(group.ranks, group.backend) for group in groups])
    print([(record.operation, record.sequence) for record in records], flush=True)
    time.sleep(10)  # the other rank still asks
    os._exit(0)

torch.cuda.set_device(rank)
store = dist.FileStore(os.environ["STORE"], 2)
dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
values = torch.ones(4, device="cuda")
dist.all_reduce(values)
torch.cuda.synchronize()
threading.Thread(target=look).start()
if rank == 0:
    dist.all_reduce(values)
    torch.cuda.synchronize()
"""


def test_the_pipe_gives_the_records_of_every_rank_while_it_hangs(run_ranks: RunRanks, tmp_path: Path) -> None:
    names = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/ask-", "TORCH_NCCL_ENABLE_MONITORING": "1"}
    for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"):
        names[name] = f"{tmp_path}/dump-"
    sizes = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "TORCH_FR_BUFFER_SIZE": "100"}
    first, second = run_ranks(2, HANGS, **names, **sizes)
    # torch writes lines of its own between them and after them.
    groups, records = _printed_lists(first.output)
    assert groups == "[('0-1', 'nccl')]", first.output
    assert records == "[('all_reduce', 1), ('all_reduce', 2)]", first.output
    assert _printed_lists(second.output)[-1] == "[('all_reduce', 1)]", second.output


def _printed_lists(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("[(")]
