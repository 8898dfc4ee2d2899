"""The processors that ranks may use: as many as were asked for, on every node."""

from __future__ import annotations

import os

from clusterrun.model.report import Finding, Grade
from clusterrun.preflight.parts import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "cpus"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "the usable processors could not be read within 10 s", "")
_REMEDY = "more --cpus-per-task, or srun --cpu-bind=none: several ranks on one processor crawl"


def probe(asked: Asked) -> object:
    """How many processors this process may run on."""
    return {"usable": len(os.sched_getaffinity(0))}


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Warn where there are fewer processors than ranks on a node while other nodes have enough."""
    usable = {node: number(reading, "usable") for node, reading in readings.items()}
    most = max((count for count in usable.values() if count), default=0.0)
    for node, count in usable.items():
        if count and count < asked.ranks and count < most:
            said = f"{count:.0f} processors for {asked.ranks} ranks, {most:.0f} on other nodes"
            yield node, Finding(NAME, Grade.WARN, said, _REMEDY)
