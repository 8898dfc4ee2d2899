"""jobs/allreduce.py, with and without other ranks; its line is what `bench scaling` reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from tests.jobs.launch import TRAIN, outside_a_launcher  # noqa: E402

PROGRAM = TRAIN.with_name("allreduce.py")
QUICK = ("--device", "cpu", "--megabytes", "1", "--rounds", "2")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *QUICK, *arguments],
        env={**outside_a_launcher(), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def told(out: str) -> dict[str, object]:
    (line,) = [line for line in out.splitlines() if line.startswith("all-reduce ")]
    result: dict[str, object] = json.loads(line.partition(" ")[2])
    return result


def test_a_single_rank_reports_its_device() -> None:
    result = told(start("--groups", "1").communicate(timeout=120)[0])
    assert result.pop("processor")
    assert result == {
        "device": "cpu",
        "torch": torch.__version__,
        "backend": "none",
        "cores": len(os.sched_getaffinity(0)),
        "groups": [],
    }


def test_the_first_ranks_are_measured_and_groups_beyond_the_world_are_skipped() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    world = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    world |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [start("--groups", "2,3,4", RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in range(3)]
    outs = [rank.communicate(timeout=120)[0] for rank in ranks]
    groups = told(outs[0])["groups"]
    assert isinstance(groups, list)
    assert [group["ranks"] for group in groups] == [2, 3]
    assert all(group["latency"] > 0 and group["bandwidth"] > 0 for group in groups)
    assert outs[1:] == ["", ""]
