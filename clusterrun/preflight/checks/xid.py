"""Xid errors in the kernel's log: what the NVIDIA driver wrote there about a GPU, and how bad it is.

The classes are those of NVIDIA's catalogue and of those who run large clusters by it: some ask for
a reboot or another GPU, some for a reset, some are worth a look; all others are of programs.
"""

from __future__ import annotations

import os
import re

from clusterrun.model.limits import chosen
from clusterrun.model.report import Finding, Grade
from clusterrun.preflight import kernel_log
from clusterrun.preflight.parts import number, rows, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "xid"
LIMIT = 10.0
LATE = Finding(
    NAME,
    Grade.UNDETERMINED,
    f"the kernel's log could not be read within {LIMIT:g} s",
    "dmesg on the node: does it answer?",
)

REBOOT, RESET, MONITOR = "reboot", "reset", "monitor"
CLASSES: dict[int, tuple[str, str]] = {
    48: (RESET, "an uncorrectable memory error"),
    54: (REBOOT, "the auxiliary power is not connected"),
    61: (RESET, "the GPU's microcontroller stopped"),
    62: (RESET, "the GPU's microcontroller halted"),
    63: (MONITOR, "a row of memory is to be remapped at the next reset"),
    64: (REBOOT, "a row of memory could not be remapped"),
    74: (RESET, "an NVLink error"),
    79: (REBOOT, "the GPU has fallen off the bus"),
    92: (MONITOR, "many corrected memory errors"),
    94: (MONITOR, "a memory error that was contained"),
    95: (REBOOT, "a memory error that could not be contained"),
    109: (RESET, "the GPU did not switch contexts in time"),
    110: (REBOOT, "a security fault"),
    119: (RESET, "the GPU's system processor does not answer"),
    120: (RESET, "the GPU's system processor failed"),
    123: (REBOOT, "the power management unit does not answer"),
    136: (RESET, "NVLink could not be trained"),
    140: (RESET, "a memory error that was not recovered"),
    142: (RESET, "the NVLink of the GPU failed"),
    143: (RESET, "the GPU could not be initialized"),
    **dict.fromkeys(range(144, 151), (RESET, "an NVLink error")),
    155: (RESET, "NVLink could not be trained"),
}
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
_FALLEN = re.compile(r"NVRM: .*GPU ([0-9A-Fa-f:.]+).*fallen off the bus")
"""The same misfortune at the driver's start, when there is no Xid yet."""
_LOADED = "NVRM: loading NVIDIA"
_MOST = 200
REMEDIES = {
    REBOOT: "reboot the node; if it comes again, have the GPU replaced",
    RESET: "drain the node and reset the GPU (nvidia-smi -r); if it comes again, have it replaced",
    MONITOR: "watch it; a reset of the GPU clears it",
}


def probe(asked: Asked) -> object:
    """Every Xid since the driver was loaded last, and how many GPUs the machine has."""
    log = kernel_log.lines()
    return {"readable": log is not None, "xids": of_lines(log or []), "installed": _installed()}


def of_lines(log: list[tuple[float, str]]) -> list[dict[str, object]]:
    """The Xid errors in a log; those from before the driver was loaded again are over."""
    found: list[dict[str, object]] = []
    for ago, line in log:
        if _LOADED in line:
            found = []
        match, fallen = _LINE.search(line), _FALLEN.search(line)
        if match:
            found.append({"xid": int(match[2]), "bus": match[1], "ago": round(ago)})
        elif fallen:
            found.append({"xid": 79, "bus": fallen[1], "ago": round(ago)})
    return found[-_MOST:]


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """One finding for each GPU and number, about the last time; a log that is closed to us says nothing."""
    fresh = chosen(asked.limits)["xid_hours"] * 3600
    for node, reading in readings.items():
        # Where the job has only some of the machine's GPUs the error may be of another's.
        ours = asked.gpus >= (number(reading, "installed") or 0)
        for (xid, bus), (ago, times) in _latest(reading).items():
            kind, meaning = CLASSES[xid]
            bad = kind == REBOOT or (kind == RESET and ago <= fresh)
            again = f", {times} times" if times > 1 else ""
            said = f"Xid {xid} of GPU {bus}: {meaning} ({_age(ago)} ago{again})"
            yield node, Finding(NAME, Grade.FAIL if bad and ours else Grade.WARN, said, REMEDIES[kind])


def _latest(reading: Any) -> dict[tuple[int, str], tuple[float, int]]:
    latest: dict[tuple[int, str], tuple[float, int]] = {}
    for row in rows(reading, "xids"):
        xid, ago = number(row, "xid"), number(row, "ago")
        if xid is None or ago is None or xid not in CLASSES:
            continue
        key = (int(xid), text(row, "bus"))
        before, times = latest.get(key, (ago, 0))
        latest[key] = (min(ago, before), times + 1)
    return latest


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _installed() -> int:
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0
