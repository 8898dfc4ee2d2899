"""What the GPUs say of their own health: memory errors, rows and pages to be replaced, asked-for resets."""

from __future__ import annotations

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.untrusted import number, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "gpu-errors"
OF = gpus.NAME
_RESET = "drain the node and reset the GPU (nvidia-smi -r) or reboot"
_GONE = "dmesg | grep -i xid on the node, then reset the GPU (nvidia-smi -r) or reboot; else reseat it"
_NEEDED = ("Reset", "Reboot", "Recover")
_REPLACE = "have the GPU replaced"


def judge(request: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail for what makes a GPU stop or compute wrongly, warn for what will do so later."""
    most_corrected = chosen(request.limits)["gpu_corrected"]
    for node, reading in readings.items():
        for index, gpu in gpus.suspects(reading):
            for verdict, said, remedy in _of_gpu(gpu, most_corrected):
                yield node, Finding(NAME, verdict, f"GPU {index}: {said}", remedy)


def _of_gpu(gpu: Mapping[str, Any], most_corrected: float) -> Iterator[tuple[Grade, str, str]]:
    if text(gpu, "gone"):
        yield Grade.FAIL, f"the driver says: {text(gpu, 'gone')}", _GONE
    uncorrected, corrected = number(gpu, "uncorrected") or 0, number(gpu, "corrected") or 0
    if uncorrected > 0:
        yield (
            Grade.FAIL,
            f"{uncorrected:.0f} uncorrected memory errors since the driver's start (limit 0)",
            _RESET,
        )
    if corrected > most_corrected:
        said = (
            f"{corrected:.0f} corrected memory errors since the driver's start (limit {most_corrected:.0f})"
        )
        yield Grade.WARN, said, "watch it: many corrected errors come before uncorrected ones"
    if text(gpu, "rows_failed") == "Yes":
        yield Grade.FAIL, "a row of memory could not be remapped", _REPLACE
    if text(gpu, "sram_exceeded") == "Yes":
        yield Grade.FAIL, "more uncorrected SRAM errors than NVIDIA allows", _REPLACE
    if text(gpu, "rows_pending") == "Yes":
        yield Grade.WARN, "a row of memory waits for a reset to be remapped", _RESET
    if text(gpu, "pages_pending") == "Yes":
        yield Grade.WARN, "a page of memory waits for a reset to be retired", _RESET
    if text(gpu, "license").startswith("Unlicensed"):
        said = f"the license of this virtual GPU: {text(gpu, 'license')}; the driver slows it down"
        yield Grade.WARN, said, "systemctl status nvidia-gridd on the node: does it reach its license server?"
    recovery = text(gpu, "recovery") or ("Reset" if text(gpu, "reset") == "Yes" else "")
    if recovery:
        needs = any(word in recovery for word in _NEEDED)  # of other words nobody knows yet how bad they are
        verdict = Grade.FAIL if needs and recovery != "Drain P2P" else Grade.WARN
        yield verdict, f"the driver asks for: {recovery}", _RESET
