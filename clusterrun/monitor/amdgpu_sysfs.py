"""Read AMD's GPUs from the kernel driver's files in /sys, in ROCm's order.

The files belong to the kernel's interface (amdgpu, amdkfd). Reading them starts no process.
"""

from __future__ import annotations

import glob
import os

from clusterrun import proc
from clusterrun.model.usage import UNKNOWN, GpuUse

NODES, DRM = "/sys/class/kfd/kfd/topology/nodes", "/sys/class/drm"
_MICRO, _MILLI = 1e6, 1e3


def look(nodes: str = NODES, drm: str = DRM) -> tuple[GpuUse, ...]:
    """Return the use of every GPU; () if the machine has none."""
    gpus: list[GpuUse] = []
    for name in sorted(filter(str.isdecimal, proc.listed(nodes)), key=int):
        properties = {}
        for line in proc.text(os.path.join(nodes, name, "properties")).splitlines():
            cells = line.split()
            if len(cells) == 2 and cells[1].isdecimal():
                properties[cells[0]] = int(cells[1])
        # A node without SIMD units is a processor.
        if properties.get("simd_count", 0) > 0:
            device = os.path.join(drm, f"renderD{properties.get('drm_render_minor', -1)}", "device")
            sensors = os.path.join(device, "hwmon", "hwmon*")
            gpus.append(
                GpuUse(
                    len(gpus),
                    _number(f"{device}/gpu_busy_percent"),
                    _number(f"{device}/mem_info_vram_used"),
                    _number(f"{device}/mem_info_vram_total"),
                    _number(f"{sensors}/power1_average", f"{sensors}/power1_input", unit=_MICRO),
                    _number(f"{sensors}/temp1_input", f"{sensors}/temp2_input", unit=_MILLI),
                    f"GPU-{properties['unique_id']:016x}" if properties.get("unique_id") else "",
                    _number(f"{device}/mem_busy_percent"),
                    _number(f"{sensors}/power1_cap", unit=_MICRO),
                )
            )
    return tuple(gpus)


def _number(*patterns: str, unit: float = 1.0) -> float:
    """Return the number in the first file that holds one, divided by ``unit``.

    A partition of a GPU has no sensors of its own.
    """
    for pattern in patterns:
        for path in glob.glob(pattern):
            text = proc.text(path).strip()
            if text.isdecimal():
                return int(text) / unit
    return UNKNOWN
