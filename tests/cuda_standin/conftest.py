"""These tests need the CUDA build of torch over the stand-ins: ``make test-cuda-standin`` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
collect_ignore_glob = [] if os.environ.get("CLUSTERRUN_TEST_CUDA_STANDIN") else ["test_*.py"]
LIMIT = 240.0


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (None: killed at the limit) and all that it printed."""

    code: int | None
    output: str


RunRanks = Callable[..., list[Ended]]


@pytest.fixture
def run_ranks(tmp_path: Path) -> RunRanks:
    """Return ``run_ranks(size, code, limit=…, VARIABLE=…)``, which runs code as ranks with a GPU each."""

    def run(size: int, code: str, limit: float = LIMIT, **variables: str) -> list[Ended]:
        store = tmp_path / "store"
        store.unlink(missing_ok=True)
        children = []
        for rank in range(size):
            environment = {
                **os.environ,
                "CUDA_STANDIN_GPUS": str(size),
                "NCCL_SOCKET_IFNAME": "lo",
                "GLOO_SOCKET_IFNAME": "lo",
                "STORE": str(store),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
                **variables,
            }
            output = (tmp_path / f"rank{rank}").open("w")
            children.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=FOLDER,
                )
            )
            output.close()
        codes: list[int | None] = []
        for child in children:
            try:
                codes.append(child.wait(limit))
            except subprocess.TimeoutExpired:
                codes.append(None)
        for child in children:
            child.kill()
            child.wait()
        return [Ended(code, (tmp_path / f"rank{rank}").read_text()) for rank, code in enumerate(codes)]

    return run
