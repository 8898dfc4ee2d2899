"""The cgroups of a lab with `--proctrack cgroup`: each host gets a part of the tree; version 1 only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from clusterrun.lab.needs import FREEZER
from clusterrun.lab.place import LabPlace

PREFIX = "clusterrun-lab."


def binds(place: LabPlace, host: str) -> list[tuple[str, str]]:
    """What a host mounts, so that its slurmd has the whole freezer and yet only its own part.

    Without it two hosts would put their processes into the same `job_1/step_0` and kill each other's.
    """
    own = FREEZER / (PREFIX + place.name) / host
    own.mkdir(parents=True, exist_ok=True)
    return [(str(own), str(FREEZER))]


def remove(place: LabPlace) -> None:
    """Remove what the lab made there; all its processes are gone by now."""
    top = FREEZER / (PREFIX + place.name)
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
