"""Two ranks of each node by ``torch.multiprocessing.spawn``: ``hanging_spawn.py MODULE CASE``."""

from __future__ import annotations

import importlib
import os
import sys

import torch.multiprocessing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

EACH = 2


def train(index: int) -> None:
    rank = int(os.environ["SLURM_NODEID"]) * EACH + index
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(2 * EACH))
    module = sys.argv.pop(1)
    importlib.import_module(module).main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=EACH)
