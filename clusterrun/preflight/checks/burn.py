"""Judge GPUs under long load: wrong results, clocks that the hardware lowers, and slow GPUs."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding
from clusterrun.preflight.checks import gpu_health, product
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import pairs

NAME = OF = "burn"


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Judge matrix products as ``product`` does, and fail if the hardware lowers the clocks under load."""
    for node, finding in product.judge(request, readings):
        message = f"under load: {finding.message}"
        yield node, Finding(NAME, finding.verdict, message, finding.remedy)
    for node, reading in readings.items():
        slowed: dict[str, list[str]] = {}
        for name in pairs(reading, "rates"):
            reason, _, gpu = name.removeprefix("slowed ").partition(":")
            if name.startswith("slowed ") and (gpu or f"{name}:0" not in pairs(reading, "rates")):
                slowed.setdefault(gpu or "0", []).append(reason)
        for gpu, reasons in slowed.items():
            grade, why, remedy = gpu_health.slowdown(reasons)
            message = f"GPU {gpu}: {why} under load ({', '.join(reasons)})"
            yield node, Finding(NAME, grade, message, remedy)
