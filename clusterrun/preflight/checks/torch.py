"""Check that the ranks' torch starts, sees the GPUs, and is the same on all nodes.

This module never imports torch. It judges what the torch worker of each node reported.
"""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, number, pairs, text

NAME = "torch"
OF = "torch"
_ALIKE = "make the environment equal on all nodes: one shared venv or container image"
_STARTS = "look at the other findings of this node; else compare its environment with the others'"
_GRADES = {"torch": Grade.FAIL, "nccl": Grade.FAIL, "cuda": Grade.FAIL, "python": Grade.WARN}
_CPU_WHEEL = "install a CUDA build of torch: this one was built for CPUs alone"


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if torch does not start, sees too few GPUs, or differs between nodes."""
    started = {node: reading for node, reading in readings.items() if entries(reading).get("up") is True}
    if not started:
        return  # Ranks may do without torch. The report says that no collective ran.
    for node, reading in readings.items():
        if node not in started:
            message = (
                f"torch starts on {len(started)} of {len(readings)} nodes, not here: {text(reading, 'why')}"
            )
            yield node, Finding(NAME, Grade.FAIL, message, _STARTS)
    yield from _devices(request, started)
    for kind in sorted({kind for reading in started.values() for kind in _versions(reading)}):
        values = {node: _versions(reading).get(kind, "absent") for node, reading in started.items()}
        name = kind if kind in ("torch", "python") else kind.upper()
        yield from outlier_findings(NAME, name, values, _GRADES.get(kind, Grade.WARN), _ALIKE)


def _devices(request: RunNeeds, up: Readings) -> Findings:
    device_counts = {node: int(number(reading, "devices") or 0) for node, reading in up.items()}
    built = {node: _versions(reading) for node, reading in up.items()}
    no_gpus = [
        node
        for node, versions in built.items()
        if versions.get("cuda", "none") == "none" and "xpu" not in versions
    ]
    cpu_wheels = [node for node in no_gpus if request.gpus and not device_counts[node]]
    if cpu_wheels and len(cpu_wheels) == len(up):
        message = "torch is a CPU build on every node: it cannot use their GPUs"
        yield "", Finding(NAME, Grade.WARN, message, _CPU_WHEEL)
        return
    for node, count in device_counts.items():
        if node in cpu_wheels:
            message = f"torch is a CPU build here: it sees none of {request.gpus} GPUs"
            yield node, Finding(NAME, Grade.FAIL, message, _CPU_WHEEL)
        elif count < request.gpus:
            why = text(up[node], "why")
            message = f"torch sees {count} of {request.gpus} GPUs" + (f": {why}" if why else "")
            remedy = "compare with nvidia-smi -L there, CUDA_VISIBLE_DEVICES, and the driver's version"
            yield node, Finding(NAME, Grade.FAIL, message, remedy)


def _versions(reading: object) -> dict[str, str]:
    versions = {name: text(version) for name, version in pairs(reading, "versions").items()}
    return {name: version for name, version in versions.items() if version}
