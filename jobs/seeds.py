"""Random states: one stream per rank and step, the same from run to run; knows no model and no group."""

from __future__ import annotations

import os
import random
import sys

import torch


def seed_rank(seed: int, rank: int, step: int, purpose: str = "step") -> None:
    """Give this rank its own random numbers for this step: Python's, PyTorch's and, if loaded, NumPy's.

    They depend on nothing else, so a resumed run draws what an uninterrupted one would have drawn.
    """
    # The string is hashed by SHA-512 inside random.seed: neighbours get unrelated streams.
    random.seed(f"{seed}/{rank}/{step}/{purpose}")
    torch.manual_seed(random.getrandbits(63))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32))


def repeat_exactly() -> None:
    """Let PyTorch take only algorithms that give the same bits in every run; it refuses the others.

    Call it before the first work on a GPU: cuBLAS reads its variable then.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
