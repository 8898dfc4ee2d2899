"""The ranks' own torch: that it starts, sees the GPUs, and is the same on all nodes.

It is never imported here: the torch worker of each node has said what it holds.
"""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, pairs, text

NAME = "torch"
OF = "torch"
_ALIKE = "make the environment equal on all nodes: one shared venv or container image"
_GRADES = {"torch": Grade.FAIL, "nccl": Grade.FAIL, "cuda": Grade.FAIL, "python": Grade.WARN}
_CPU_WHEEL = "install a CUDA build of torch: this one was built for CPUs alone"


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail where torch does not start, sees too few GPUs or is another; only what differs names a node."""
    up = {n: one for n, one in readings.items() if isinstance(one, dict) and one.get("up") is True}
    if not up:
        return  # ranks without torch are no fault; the report says that no collective was run
    for node, reading in readings.items():
        if node not in up:
            said = f"torch starts on {len(up)} of {len(readings)} nodes, not here: {text(reading, 'why')}"
            yield node, Finding(NAME, Grade.FAIL, said, _ALIKE)
    yield from _devices(request, up)
    for what in sorted({kind for reading in up.values() for kind in _versions(reading)}):
        values = {node: _versions(reading).get(what, "absent") for node, reading in up.items()}
        name = what if what in ("torch", "python") else what.upper()
        yield from outlier_findings(NAME, name, values, _GRADES.get(what, Grade.WARN), _ALIKE)


def _devices(request: RunNeeds, up: Readings) -> Findings:
    seen = {node: int(number(reading, "devices") or 0) for node, reading in up.items()}
    built = {node: _versions(reading) for node, reading in up.items()}
    no_gpus = [
        node for node, known in built.items() if known.get("cuda", "none") == "none" and "xpu" not in known
    ]
    cpu_wheels = [node for node in no_gpus if request.gpus and not seen[node]]
    if cpu_wheels and len(cpu_wheels) == len(up):
        said = f"torch is a CPU build on every node: it cannot use the {request.gpus} GPUs of each"
        yield "", Finding(NAME, Grade.WARN, said, _CPU_WHEEL)
        return
    for node, count in seen.items():
        if node in cpu_wheels:
            said = f"torch is a CPU build here: it sees none of {request.gpus} GPUs"
            yield node, Finding(NAME, Grade.FAIL, said, _CPU_WHEEL)
        elif count < request.gpus:
            why = text(up[node], "why")
            said = f"torch sees {count} of {request.gpus} GPUs" + (f": {why}" if why else "")
            remedy = "compare with nvidia-smi -L there, CUDA_VISIBLE_DEVICES, and the driver's version"
            yield node, Finding(NAME, Grade.FAIL, said, remedy)


def _versions(reading: object) -> dict[str, str]:
    found = {name: text(version) for name, version in pairs(reading, "versions").items()}
    return {name: version for name, version in found.items() if version}
