"""Starts jobs/train.py on this machine as a launcher would, without a race for a port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

TRAIN = Path(__file__).resolve().parents[2] / "jobs" / "train.py"
LIMIT = 300


def outside_a_launcher() -> dict[str, str]:
    """This process's environment without what a launcher sets."""
    steering = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "OMP_NUM_THREADS", "GROUP_")
    return {name: value for name, value in os.environ.items() if not name.startswith(steering)}


def alone(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python jobs/train.py …`, with no launcher."""
    command = [sys.executable, "-u", str(TRAIN), *arguments]
    surrounding = {**outside_a_launcher(), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        command, env=surrounding, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def together(size: int, *arguments: str) -> list[str]:
    """What each of `size` ranks printed, all of them having ended well."""
    # The store lives here and its port was the kernel's choice: nothing can take it in between.
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    ranks = [start(rank, size, store.port, arguments) for rank in range(size)]
    try:
        printed = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(printed)
    return printed


def start(rank: int, size: int, port: int, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    """One rank, with what torchrun would set."""
    placed = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "OMP_NUM_THREADS": 1,
    }
    return subprocess.Popen(
        [sys.executable, "-u", str(TRAIN), "--device", "cpu", *arguments],
        env={**outside_a_launcher(), **{name: str(value) for name, value in placed.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
