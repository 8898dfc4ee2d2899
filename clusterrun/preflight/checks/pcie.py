"""The PCIe link of each GPU: lanes that were lost, and a generation below that of the other nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.majority import split
from clusterrun.preflight.tasks import Asked, Findings, Readings
from clusterrun.preflight.untrusted import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "pcie"
OF = gpus.NAME
_SEVERAL = 3
_LEAST_NODES, _LEAST_GPUS = 2, 4
"""With so many others that have more lanes, on other nodes or on this one, the slot is not built so."""
_RESEAT = "reseat the GPU or its riser; drain the node until then"


def judge(request: Asked, readings: Readings) -> Findings:
    """Warn of lost lanes, and of a node whose links could be faster everywhere else.

    A slot may be built with fewer lanes than its GPU has: they are lost where most of its like have more.
    The generation of this moment is not judged: an idle GPU lowers it to save power.
    """
    best: dict[str, str] = {}
    given = {node: gpus.given(reading) for node, reading in readings.items()}
    lanes = Counter((i, number(gpu, "width") or 0.0) for there in given.values() for i, gpu in there)
    for node, there in given.items():
        for index, gpu in there:
            width, most = number(gpu, "width") or 0.0, number(gpu, "width_most") or 0.0
            if 0 < width < most and _lost(index, width, lanes, there, len(readings)):
                said = f"GPU {index}: PCIe has {width:.0f} lanes of {most:.0f}"
                verdict = Grade.FAIL if width * 4 <= most else Grade.WARN
                yield node, Finding(NAME, verdict, said, _RESEAT)
        generations = [number(gpu, "generation_most") for _, gpu in there]
        known = [generation for generation in generations if generation]
        if known:
            best[node] = f"{min(known):.0f}"
    found = split(best)
    for node in found.odd:
        if best[node] < found.usual:
            said = f"PCIe reaches generation {best[node]} here, {found.usual} on the other nodes"
            yield node, Finding(NAME, Grade.WARN, said, _RESEAT)


def _lost(
    index: int,
    width: float,
    lanes: Mapping[tuple[int, float], int],
    there: list[tuple[int, dict[str, Any]]],
    nodes: int,
) -> bool:
    """Whether most of its like have more lanes: GPUs of its number, or, with few nodes, those of its node."""
    if nodes >= _SEVERAL:
        widths, least = {of: many for (i, of), many in lanes.items() if i == index}, _LEAST_NODES
    else:
        widths, least = Counter(number(gpu, "width") or 0.0 for _, gpu in there), _LEAST_GPUS
    more = sum(many for of, many in widths.items() if of > width)
    return more >= least and 2 * more > sum(widths.values())
