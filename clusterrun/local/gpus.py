"""How many real GPUs this machine has."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence

from clusterrun import proc, system

DRIVER = "/proc/driver/nvidia/gpus"
AMD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PLACES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin")
LIMIT = 60.0
"""Seconds for ``nvidia-smi``: slow where the driver is loaded again, it hangs where that is broken."""


def count_gpus(
    environment: Mapping[str, str],
    run: Callable[..., system.Completed] = system.run,
    driver: str = DRIVER,
    places: Sequence[str] = PLACES,
    amd_nodes: str = AMD_NODES,
) -> int:
    """GPUs that a program started here would see; ``CUDA_VISIBLE_DEVICES`` narrows them."""
    path = [*environment.get("PATH", os.defpath).split(os.pathsep), *places]
    program = any(os.access(os.path.join(place, "nvidia-smi"), os.X_OK) for place in path)
    installed = _listed(run) if program else len(proc.listed(driver)) or _of_amd(amd_nodes)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return installed
    return min(installed, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def _listed(run: Callable[..., system.Completed]) -> int:
    try:
        answer = run(("nvidia-smi", "-L"), LIMIT)
    except (system.ProgramMissing, system.ProgramTimeout):
        return 0
    # Its code is 14 where it lists all, and the infoROM of one is corrupted.
    return sum(line.startswith("GPU ") for line in answer.out.splitlines())


def _of_amd(nodes: str) -> int:
    """How many of the nodes of AMD's driver compute: the others are processors."""
    counts = []
    for path in glob.glob(f"{glob.escape(nodes)}/*/properties"):
        lines = proc.text(path).splitlines()
        counts += [line.split()[1:] for line in lines if line.startswith("simd_count ")]
    return sum(count not in ([], ["0"]) for count in counts)
