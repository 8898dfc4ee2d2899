"""Renders the end report of a run as text, with a note on values that were not measured."""

from __future__ import annotations

from clusterrun.model.duration import spoken
from clusterrun.model.size import gibibytes
from clusterrun.reports.efficiency import EndReport

NO_STEPS = "not measured: the script does not report its steps (clusterrun.training.progress)"
NO_CHECKPOINTS = (
    "not measured: it is not known which steps were repeated, for the script reports no checkpoints"
)
KWH = 3.6e6


def lines(report: EndReport | None) -> list[tuple[str, str]]:
    if report is None:
        return []
    rows = (
        ("time", _time(report)),
        ("goodput", _goodput(report)),
        ("GPUs", _gpus(report)),
        ("CPUs", _cpus(report)),
        ("memory", _memory(report)),
        ("energy", _energy(report)),
        ("enough", " ".join(report.smaller) + " would have been enough" if report.smaller else ""),
    )
    return [(head, text) for head, text in rows if text]


def _time(report: EndReport) -> str:
    nodes = f" on {report.nodes} nodes" if report.nodes > 1 else ""
    parts = [("check", report.check), ("start", report.start), ("between attempts", report.between)]
    spent = [f"{name} {spoken(seconds)}" for name, seconds in parts if seconds and seconds >= 0.5]
    spent += [f"ranks {spoken(report.ranks)}"] if report.ranks is not None else []
    details = f": {', '.join(spent)}" if spent else ""
    return f"queue {spoken(report.queue)}, allocated {spoken(report.allocated)}{nodes}{details}"


def _goodput(report: EndReport) -> str:
    if report.ranks is None and report.steps is None:
        return "not measured"
    if report.steps is None:
        return NO_STEPS
    if report.goodput is None or report.counted is None:
        return NO_CHECKPOINTS
    text = (
        f"{100 * report.goodput:.0f} % of the allocated time: {spoken(report.counted)} in steps that counted"
    )
    lost = report.steps - report.counted
    return text + (f", {spoken(lost)} in steps that were lost" if lost >= 0.5 else "")


def _gpus(report: EndReport) -> str:
    if report.gpu_busy_mean is None:
        return ""
    parts = [f"{100 * report.gpu_busy_mean:.0f} % busy on average"]
    if report.gpu_busy_most is not None:
        parts += [f"{100 * report.gpu_busy_most:.0f} % at most"]
    if report.gpu_memory_most is not None:
        parts += [f"memory {100 * report.gpu_memory_most:.0f} % full at most"]
    if report.gpus_idle:
        parts += [f"{report.gpus_idle} of {report.gpus} never busy"]
    return ", ".join(parts)


def _cpus(report: EndReport) -> str:
    if report.cores_mean is None:
        return ""
    request = f", of {report.cores_asked} asked for" if report.cores_asked else ""
    most = f", {report.cores_most:.1f} at most" if report.cores_most is not None else ""
    return f"{report.cores_mean:.1f} cores of a node on average{most}{request}"


def _memory(report: EndReport) -> str:
    if report.memory_most is None:
        return ""
    request = f", of {gibibytes(report.memory_asked)} asked for" if report.memory_asked else ""
    return f"{gibibytes(report.memory_most)} of a node at most{request}"


def _energy(report: EndReport) -> str:
    parts = []
    if report.gpu_joules is not None:
        parts += [f"{report.gpu_joules / KWH:.3g} kWh by the GPUs, as they say"]
    if report.node_joules is not None:
        each = f"s ({report.node_joules / report.nodes / KWH:.3g} kWh each)" if report.nodes > 1 else ""
        parts += [f"{report.node_joules / KWH:.3g} kWh by the node{each}, as Slurm measured"]
    return "; ".join(parts)
