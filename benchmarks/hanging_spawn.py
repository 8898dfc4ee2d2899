"""Two ranks of each node by ``torch.multiprocessing.spawn``, which hang in a case of `hanging_script.py`."""

from __future__ import annotations

import os
import sys

import torch.multiprocessing

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

EACH = 2


def train(index: int) -> None:
    import hanging_script

    rank = int(os.environ["SLURM_NODEID"]) * EACH + index
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(2 * EACH))
    hanging_script.main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=EACH)
