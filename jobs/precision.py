"""Mixed precision: the context for 16-bit computation, and the scaler for small gradients."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODES = (*SHORT, "off")
# Flags in /proc/cpuinfo. A processor without them is not faster with 16 bits.
CPU_INSTRUCTIONS = {"bf16": ("avx512_bf16", "amx_bf16"), "fp16": ("avx512_fp16", "amx_fp16")}
# NVIDIA GPUs compute in bf16 from this major compute capability on.
BF16_SINCE = 8


@dataclass(frozen=True)
class Precision:
    """``bf16``, ``fp16`` or ``off``, on a kind of device."""

    mode: str
    device: torch.device

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which matrix products and convolutions use 16-bit operands."""
        if self.mode == "off":
            return contextlib.nullcontext()
        cast: contextlib.AbstractContextManager[object] = torch.autocast(self.device.type, SHORT[self.mode])
        return cast

    def scaler(self) -> torch.amp.GradScaler:
        """Return the scaler of the loss. It acts only for fp16, which cannot represent small gradients."""
        return torch.amp.GradScaler(self.device.type, enabled=self.mode == "fp16")

    def notice(self) -> str:
        """Return why the mode is probably not faster on this device; '' if it may be."""
        if self.mode == "off":
            return ""
        lacking = missing_on_gpu(self) if self.device.type == "cuda" else missing_on_cpu(self.mode)
        return lacking and f"--amp {self.mode} works, but {lacking}: it may be slower than off"


def missing_on_gpu(precision: Precision) -> str:
    """Return what the GPU lacks for the mode; '' if nothing."""
    major, minor = torch.cuda.get_device_capability(precision.device)
    if precision.mode == "fp16" or major >= BF16_SINCE:
        return ""
    return f"this GPU (compute capability {major}.{minor}) has no bf16 units"


def missing_on_cpu(mode: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return what the processor lacks for the mode; '' if nothing, or if its flags are unknown."""
    if not cpuinfo.exists():
        return ""
    flags = set(cpuinfo.read_text(encoding="utf-8").split())
    needed = CPU_INSTRUCTIONS[mode]
    return "" if flags & set(needed) else f"this processor has no {mode} instructions ({' or '.join(needed)})"
