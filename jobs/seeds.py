"""Seed random numbers per rank and step, so that runs are reproducible."""

from __future__ import annotations

import os
import random
import sys

import torch


def seed_rank(seed: int, rank: int, step: int, purpose: str = "step") -> None:
    """Seed Python, PyTorch and, if it is loaded, NumPy for this rank and step.

    A resumed run draws the same numbers as an uninterrupted one.
    """
    # random.seed hashes the text by SHA-512, so that similar seeds have unrelated numbers.
    random.seed(f"{seed}/{rank}/{step}/{purpose}")
    torch.manual_seed(random.getrandbits(63))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32))


def repeat_exactly() -> None:
    """Let PyTorch use only reproducible algorithms. It raises an error for others.

    Call it before the first work on a GPU, because cuBLAS reads its variable then.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
