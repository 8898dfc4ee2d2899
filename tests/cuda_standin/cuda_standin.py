"""Loaded by torch (entry point ``torch.backends``): its CPU kernels compute for the stand-in GPUs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def load() -> None:
    ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libcuda_standin.so")).cuda_standin_register()
    # torch's own layers, and attention made of plain operators, in place of libraries that are empty.
    torch.backends.cudnn.enabled = False
    for choose in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, choose)(False)
