"""How many real GPUs this machine has; knows nothing of who wants them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from clusterrun import system

DRIVER = "/proc/driver/nvidia/gpus"
LIMIT = 15.0
"""Seconds for ``nvidia-smi``, which hangs where a driver is broken."""


def count_gpus(
    run: Callable[..., system.Completed] = system.run,
    environment: Mapping[str, str] | None = None,
    driver: str = DRIVER,
) -> int:
    """GPUs that a program started here would see: 0 where nothing says that there are any.

    ``CUDA_VISIBLE_DEVICES`` in ``environment`` narrows them.
    """
    there = _listed(run) if _program_exists(environment) else _in_driver(driver)
    visible = (environment or {}).get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    return min(there, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


def _program_exists(environment: Mapping[str, str] | None) -> bool:
    path = (environment if environment is not None else {"PATH": os.defpath}).get("PATH", os.defpath)
    places = [*path.split(os.pathsep), "/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin"]
    return any(os.access(os.path.join(place, "nvidia-smi"), os.X_OK) for place in places)


def _listed(run: Callable[..., system.Completed]) -> int:
    try:
        done = run(("nvidia-smi", "-L"), LIMIT)
    except (system.ProgramMissing, system.ProgramTimeout):
        return 0
    return sum(line.startswith("GPU ") for line in done.out.splitlines()) if done.code == 0 else 0


def _in_driver(driver: str) -> int:
    try:
        return len(os.listdir(driver))
    except OSError:
        return 0
