"""Reads AMD's GPUs from the kernel driver's files in /sys, in the order in which ROCm counts them.

Files of the kernel's interface (amdgpu, amdkfd): nothing is started, and a look costs no processor.
"""

from __future__ import annotations

import glob
import os

from clusterrun import proc
from clusterrun.model.usage import UNKNOWN, GpuUse

NODES, DRM = "/sys/class/kfd/kfd/topology/nodes", "/sys/class/drm"
_MICRO, _MILLI = 1e6, 1e3


def look(nodes: str = NODES, drm: str = DRM) -> tuple[GpuUse, ...]:
    """Every GPU now; () on a machine without any."""
    names = sorted(filter(str.isdecimal, proc.listed(nodes)), key=int)
    tables = [proc.text(os.path.join(nodes, name, "properties")).splitlines() for name in names]
    pairs = [[words for line in table if len(words := line.split()) == 2] for table in tables]
    found = [{name: int(value) for name, value in table if value.isdecimal()} for table in pairs]
    gpus = [one for one in found if one.get("simd_count", 0) > 0]  # a node without is a processor
    return tuple(_gpu(place, one, drm) for place, one in enumerate(gpus))


def _gpu(place: int, properties: dict[str, int], drm: str) -> GpuUse:
    device = os.path.join(drm, f"renderD{properties.get('drm_render_minor', -1)}", "device")
    sensors = os.path.join(device, "hwmon", "hwmon*")
    return GpuUse(
        place,
        _number(f"{device}/gpu_busy_percent"),
        _number(f"{device}/mem_info_vram_used"),
        _number(f"{device}/mem_info_vram_total"),
        _number(f"{sensors}/power1_average", f"{sensors}/power1_input", unit=_MICRO),
        _number(f"{sensors}/temp1_input", f"{sensors}/temp2_input", unit=_MILLI),
        f"GPU-{properties['unique_id']:016x}" if properties.get("unique_id") else "",
    )


def _number(*patterns: str, unit: float = 1.0) -> float:
    """The first of these files that holds a number, in units; a part of a GPU has no sensors of its own."""
    for pattern in patterns:
        for path in glob.glob(pattern):
            text = proc.text(path).strip()
            if text.isdecimal():
                return int(text) / unit
    return UNKNOWN
