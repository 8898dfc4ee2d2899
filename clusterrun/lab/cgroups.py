"""Make and remove the cgroups of a lab with `--proctrack cgroup`: each host has a part of the tree.

Without it two hosts would put their processes into the same `job_1/step_0` and kill each other's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from clusterrun.lab.namespaces import LabError
from clusterrun.lab.needs import CGROUPS, FREEZER
from clusterrun.lab.place import LabPlace

PREFIX = "clusterrun-lab."


def binds(place: LabPlace, host: str) -> list[tuple[str, str]]:
    """Return the mounts of a host that show its slurmd its own part as the whole freezer.

    In version 2 slurmd names its part by the node itself, in a folder that systemd makes elsewhere.
    """
    if FREEZER.is_dir():
        own = FREEZER / (PREFIX + place.name) / host
        own.mkdir(parents=True, exist_ok=True)
        return [(str(own), str(FREEZER))]
    scope = _scope(host)
    _remove(scope)
    if scope.exists():
        raise LabError(f"{scope} is in use, by another lab", "see which there are: clusterrun lab status")
    scope.parent.mkdir(exist_ok=True)
    return []


def remove(place: LabPlace, nodes: Iterable[str]) -> None:
    """Remove the lab's cgroups after all its processes have ended."""
    _remove(FREEZER / (PREFIX + place.name))
    for node in nodes:
        _remove(_scope(node))


def _scope(node: str) -> Path:
    return CGROUPS / "system.slice" / f"{node}_slurmstepd.scope"


def _remove(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
