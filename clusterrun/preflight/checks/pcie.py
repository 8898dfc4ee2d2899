"""The PCIe link of each GPU: lanes that were lost, and a generation below that of the other nodes."""

from __future__ import annotations

from clusterrun.model.report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.majority import split
from clusterrun.preflight.parts import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "pcie"
OF = gpus.NAME
_SEVERAL = 3
_RESEAT = "reseat the GPU or its riser; drain the node until then"


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Warn of lost lanes, and of a node whose links could be faster everywhere else.

    The generation of this moment is not judged: an idle GPU lowers it to save power. Where all nodes
    have the same lanes, these machines are built so.
    """
    best: dict[str, str] = {}
    built_so = _alike(readings)
    for node, reading in readings.items():
        for index, gpu in gpus.given(reading):
            width, most = number(gpu, "width"), number(gpu, "width_most")
            if width and most and width < most and not built_so:
                said = f"GPU {index}: PCIe has {width:.0f} lanes of {most:.0f}"
                verdict = Grade.FAIL if width * 4 <= most else Grade.WARN
                yield node, Finding(NAME, verdict, said, _RESEAT)
        generations = [number(gpu, "generation_most") for _, gpu in gpus.given(reading)]
        known = [generation for generation in generations if generation]
        if known:
            best[node] = f"{min(known):.0f}"
    found = split(best)
    for node in found.odd:
        if best[node] < found.usual:
            said = f"PCIe reaches generation {best[node]} here, {found.usual} on the other nodes"
            yield node, Finding(NAME, Grade.WARN, said, _RESEAT)


def _alike(readings: Mapping[str, Any]) -> bool:
    """The GPUs of several nodes have the same lanes, one by one."""
    lanes = {tuple(number(gpu, "width") for _, gpu in gpus.given(reading)) for reading in readings.values()}
    return len(readings) >= _SEVERAL and len(lanes) == 1
