"""Mixed precision: what is computed in 16 bits, and the scaler that keeps small gradients; knows no model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODES = (*SHORT, "off")
CPU_INSTRUCTIONS = {"bf16": ("avx512_bf16", "amx_bf16"), "fp16": ("avx512_fp16", "amx_fp16")}
"""Words of /proc/cpuinfo: what a processor must have to be faster with fewer bits."""
BF16_SINCE = 8
"""The major compute capability from which NVIDIA GPUs compute in bf16."""


@dataclass(frozen=True)
class Precision:
    """``bf16``, ``fp16`` or ``off``, on a kind of device."""

    mode: str
    device: torch.device

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """Inside, matrix products and convolutions take 16-bit copies of their operands."""
        if self.mode == "off":
            return contextlib.nullcontext()
        cast: contextlib.AbstractContextManager[object] = torch.autocast(self.device.type, SHORT[self.mode])
        return cast

    def scaler(self) -> torch.amp.GradScaler:
        """Scales the loss for fp16, whose smallest numbers are too large for gradients; else does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.mode == "fp16")

    def notice(self) -> str:
        """Why it will not be faster here; empty when it may be."""
        if self.mode == "off":
            return ""
        lacking = missing_on_gpu(self) if self.device.type == "cuda" else missing_on_cpu(self.mode)
        return lacking and f"--amp {self.mode} works here, but {lacking}: it may well be slower than off"


def missing_on_gpu(precision: Precision) -> str:
    """What the GPU lacks for it."""
    major, minor = torch.cuda.get_device_capability(precision.device)
    if precision.mode == "fp16" or major >= BF16_SINCE:
        return ""
    return f"this GPU (compute capability {major}.{minor}) has no bf16 units"


def missing_on_cpu(mode: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor lacks for it, by the kernel's list of what it can; empty where there is no list."""
    if not cpuinfo.exists():
        return ""
    able = set(cpuinfo.read_text(encoding="utf-8").split())
    needed = CPU_INSTRUCTIONS[mode]
    return "" if able & set(needed) else f"this processor has no {mode} instructions ({' or '.join(needed)})"
