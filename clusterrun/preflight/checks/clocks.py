"""What slows the GPUs' clocks: heat, a power brake, or a limit that somebody set on this node alone."""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.majority import split
from clusterrun.preflight.tasks import Asked, Findings, Readings
from clusterrun.preflight.untrusted import number, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "clocks"
OF = gpus.NAME
_COOL = "look at the node's cooling (fans, inlet temperature, dust) and drain it until then"
_POWER = "look at the node's power supplies and the rack's power limit"
REASONS = {
    "hw_thermal_slowdown": ("the GPU is too hot", _COOL),
    "hw_power_brake_slowdown": ("the machine's power brake is on", _POWER),
    "hw_slowdown": ("the hardware slows the clocks", _COOL),
    "sw_thermal_slowdown": ("the driver slows the clocks because of heat", _COOL),
}
_SET = {
    "watts_most": ("power limit", "W", "nvidia-smi -pl on that node"),
    "clock_set": ("application clock", "MHz", "nvidia-smi -rac on that node"),
}
_TOLERATED = 0.05


def judge(request: Asked, readings: Readings) -> Findings:
    """Fail for a slowdown by the hardware, warn for one by the driver and for limits below the others'."""
    for node, reading in readings.items():
        for index, gpu in gpus.given(reading):
            slowed = [reason for reason in REASONS if reason in words(gpu, "slowed")]
            if slowed:
                why, remedy = REASONS[slowed[0]]
                verdict = Grade.WARN if slowed[0] == "sw_thermal_slowdown" else Grade.FAIL
                said = f"GPU {index}: {why} ({', '.join(slowed)}{_temperature(gpu)})"
                yield node, Finding(NAME, verdict, said, remedy)
    for field in _SET:
        yield from _lower_than_others(field, readings)


def _lower_than_others(field: str, readings: Readings) -> Findings:
    lowest: dict[str, str] = {}
    for node, reading in readings.items():
        known = [number(gpu, field) for _, gpu in gpus.given(reading)]
        numbers = [value for value in known if value]
        if numbers:
            lowest[node] = f"{min(numbers):.0f}"
    found, (what, unit, remedy) = split(lowest), _SET[field]
    for node in found.odd:
        if float(lowest[node]) < (1 - _TOLERATED) * float(found.usual):
            said = f"the {what} is {lowest[node]} {unit} here, {found.usual} {unit} on the other nodes"
            yield node, Finding(NAME, Grade.WARN, said, remedy)


def _temperature(gpu: Mapping[str, Any]) -> str:
    degrees = number(gpu, "temperature")
    return "" if degrees is None else f", {degrees:.0f} °C"
