"""Count the real GPUs of this machine."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from clusterrun import proc, system

DRIVER = "/proc/driver/nvidia/gpus"
AMD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PLACES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin")
# Seconds for ``nvidia-smi``. It is slow while the driver is loaded, and hangs if the driver is broken.
LIMIT = 60.0


def count_gpus(
    environment: Mapping[str, str],
    run: Callable[..., system.Completed] = system.run,
    driver: str = DRIVER,
    places: Sequence[str] = PLACES,
    amd_nodes: str = AMD_NODES,
) -> int:
    """Return the number of GPUs that a program here sees. ``CUDA_VISIBLE_DEVICES`` limits it."""
    path = [*environment.get("PATH", os.defpath).split(os.pathsep), *places]
    program = any(os.access(os.path.join(place, "nvidia-smi"), os.X_OK) for place in path)
    if program:
        installed = 0
        with suppress(system.ProgramMissing, system.ProgramTimeout):
            # The exit code is 14 if the infoROM of one GPU is corrupted, but the list is complete.
            listing = run(("nvidia-smi", "-L"), LIMIT).out.splitlines()
            installed = sum(line.startswith("GPU ") for line in listing)
    else:
        installed = len(proc.listed(driver)) or _count_amd_gpus(amd_nodes)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return installed
    return min(installed, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def _count_amd_gpus(nodes: str) -> int:
    """Return the number of GPUs among the nodes of AMD's driver. The other nodes are processors."""
    counts = []
    for path in glob.glob(f"{glob.escape(nodes)}/*/properties"):
        lines = proc.text(path).splitlines()
        counts += [line.split()[1:] for line in lines if line.startswith("simd_count ")]
    return sum(count not in ([], ["0"]) for count in counts)
