"""Starts jobs/train.py on this machine as a launcher would, without a race for a port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

TRAIN = Path(__file__).resolve().parents[2] / "jobs" / "train.py"
SEQUENCE = Path(__file__).resolve().with_name("in_sequence.py")
LIMIT = 900
"""Seconds; a busy machine may need some of them."""


@dataclass(frozen=True)
class Ended:
    """The output of a rank and its end."""

    code: int
    out: str
    err: str


def outside_a_launcher() -> dict[str, str]:
    """Return this process's environment without the variables of a launcher."""
    steering = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "OMP_NUM_THREADS", "GROUP_")
    steering += ("CLUSTERRUN_", "NNODES", "NPROC_PER_NODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(steering)}


def alone(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python jobs/train.py …` without a launcher."""
    command = [sys.executable, "-u", str(TRAIN), *arguments]
    surrounding = {**outside_a_launcher(), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        command, env=surrounding, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def runs(size: int, expected: Mapping[str, Sequence[str]]) -> dict[str, list[Ended]]:
    """Run several trainings on the same `size` ranks, one after another. Return each rank's end by name.

    Size 0 is one process without a launcher.
    """
    # The stores live here and their ports were the kernel's choice: nothing can take them in between.
    stores = [
        dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False) if size else None
        for _ in expected
    ]
    requested = json.dumps(
        [
            (store.port if store else 0, ["--device", "cpu", *arguments])
            for store, arguments in zip(stores, expected.values(), strict=True)
        ]
    )
    ranks = [start(rank, size, requested) for rank in range(max(1, size))]
    try:
        printed = [rank.communicate(timeout=LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(err for _, err in printed)
    by_rank = [[Ended(**run) for run in json.loads(out.splitlines()[-1])] for out, _ in printed]
    return {name: [rank[number] for rank in by_rank] for number, name in enumerate(expected)}


def start(rank: int, size: int, requested: str) -> subprocess.Popen[str]:
    """Start one rank with torchrun's variables, or a single process."""
    placed = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 0,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": 0,
    }
    shared = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TRAIN.parent), str(TRAIN.parents[1])]),
    }
    return subprocess.Popen(
        [sys.executable, "-u", str(SEQUENCE), requested],
        env={
            **outside_a_launcher(),
            **shared,
            **({name: str(value) for name, value in placed.items()} if size else {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
