"""The end report of a run as text and as JSON; what was not measured is reported as such."""

from __future__ import annotations

from typing import Any

from clusterrun.model.duration import spoken
from clusterrun.model.frozen import fields
from clusterrun.model.size import gibibytes
from clusterrun.reports.efficiency import EndReport

NO_STEPS = "not measured: the script does not report its steps (clusterrun.training.progress)"
NO_CHECKPOINTS = (
    "not measured: it is not known which steps were repeated, for the script reports no checkpoints"
)
KWH = 3.6e6


def lines(found: EndReport | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    known = (
        ("time", _time(found)),
        ("goodput", _goodput(found)),
        ("GPUs", _gpus(found)),
        ("CPUs", _cpus(found)),
        ("memory", _memory(found)),
        ("energy", _energy(found)),
        ("enough", " ".join(found.smaller) + " would have been enough" if found.smaller else ""),
    )
    return [(head, said) for head, said in known if said]


def document(found: EndReport | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: round(one, 4) if isinstance(one, float) else one for name, one in fields(found).items()}


def _time(found: EndReport) -> str:
    nodes = f" on {found.nodes} nodes" if found.nodes > 1 else ""
    parts = [("check", found.check), ("start", found.start), ("between attempts", found.between)]
    went = [f"{name} {spoken(seconds)}" for name, seconds in parts if seconds and seconds >= 0.5]
    went += [f"ranks {spoken(found.ranks)}"] if found.ranks is not None else []
    parted = f": {', '.join(went)}" if went else ""
    return f"queue {spoken(found.queue)}, allocated {spoken(found.allocated)}{nodes}{parted}"


def _goodput(found: EndReport) -> str:
    if found.ranks is None and found.steps is None:
        return "not measured"
    if found.steps is None:
        return NO_STEPS
    if found.goodput is None or found.counted is None:
        return NO_CHECKPOINTS
    said = f"{100 * found.goodput:.0f} % of the allocated time: {spoken(found.counted)} in steps that counted"
    lost = found.steps - found.counted
    return said + (f", {spoken(lost)} in steps that were lost" if lost >= 0.5 else "")


def _gpus(found: EndReport) -> str:
    if found.gpu_busy_mean is None:
        return ""
    said = [f"{100 * found.gpu_busy_mean:.0f} % busy on average"]
    if found.gpu_busy_most is not None:
        said += [f"{100 * found.gpu_busy_most:.0f} % at most"]
    if found.gpu_memory_most is not None:
        said += [f"memory {100 * found.gpu_memory_most:.0f} % full at most"]
    if found.gpus_idle:
        said += [f"{found.gpus_idle} of {found.gpus} never busy"]
    return ", ".join(said)


def _cpus(found: EndReport) -> str:
    if found.cores_mean is None:
        return ""
    asked = f", of {found.cores_asked} asked for" if found.cores_asked else ""
    most = f", {found.cores_most:.1f} at most" if found.cores_most is not None else ""
    return f"{found.cores_mean:.1f} cores of a node on average{most}{asked}"


def _memory(found: EndReport) -> str:
    if found.memory_most is None:
        return ""
    asked = f", of {gibibytes(found.memory_asked)} asked for" if found.memory_asked else ""
    return f"{gibibytes(found.memory_most)} of a node at most{asked}"


def _energy(found: EndReport) -> str:
    said = []
    if found.gpu_joules is not None:
        said += [f"{found.gpu_joules / KWH:.3g} kWh by the GPUs, as they say"]
    if found.node_joules is not None:
        each = f"s ({found.node_joules / found.nodes / KWH:.3g} kWh each)" if found.nodes > 1 else ""
        said += [f"{found.node_joules / KWH:.3g} kWh by the node{each}, as Slurm measured"]
    return "; ".join(said)
