"""Xid errors in the kernel's log: what the NVIDIA driver wrote there about a GPU, and how bad it is.

The classes are those of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors): some ask for a
reboot, some for a reset of the GPU, some are worth a look; all others are of programs.
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
    62: (RESET, "the GPU's microcontroller halted"),
    63: (MONITOR, "a row of memory is to be remapped at the next reset"),
    64: (RESET, "a row of memory could not be remapped"),
    74: (RESET, "an NVLink error"),
    79: (REBOOT, "the GPU has fallen off the bus"),
    92: (MONITOR, "many corrected memory errors"),
    94: (MONITOR, "a memory error that was contained"),
    95: (RESET, "a memory error that was not contained"),
    109: (RESET, "the GPU did not switch contexts in time"),
    110: (RESET, "a security fault"),
    119: (RESET, "the GPU's system processor does not answer"),
    120: (RESET, "the GPU's system processor failed"),
    136: (RESET, "an NVLink could not be trained"),
    140: (RESET, "a memory error that was not recovered"),
    143: (RESET, "the GPU could not be initialized"),
    **dict.fromkeys(range(144, 151), (RESET, "an NVLink error")),
    156: (MONITOR, "a part of the GPU was retired"),
    157: (MONITOR, "a part of the GPU could not be retired"),
    158: (RESET, "a fatal timeout of the GPU"),
    167: (RESET, "a fatal timeout of PCIe"),
}
ASKS = 154
"""Not an error of its own: the driver says what the GPU needs now."""
_NEEDS = {"Node Reboot Required": REBOOT, "GPU Reset Required": RESET, "Drain": MONITOR}
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+),? ?(.*)")
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
            said = match[3].rpartition("name=<unknown>, ")[2]
            found.append({"xid": int(match[2]), "bus": match[1], "ago": round(ago), "said": said[:120]})
        elif fallen:
            found.append({"xid": 79, "bus": fallen[1], "ago": round(ago), "said": ""})
    return found[-_MOST:]


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """One finding for each GPU and number, about the last time; a log that is closed to us says nothing."""
    fresh = chosen(asked.limits)["xid_hours"] * 3600
    for node, reading in readings.items():
        # Where the job has only some of the machine's GPUs the error may be of another's.
        ours = asked.gpus >= (number(reading, "installed") or 0)
        for (xid, bus), rows_of_one in _by_gpu(reading).items():
            ago = min(number(row, "ago") or 0.0 for row in rows_of_one)
            kind, meaning = min((_class(xid, row) for row in rows_of_one), key=_rank)
            if not kind or (kind == MONITOR and ago > fresh):
                continue
            bad = ours and (kind == REBOOT or (kind == RESET and ago <= fresh))
            again = f", {len(rows_of_one)} times" if len(rows_of_one) > 1 else ""
            said = f"Xid {xid} of GPU {bus}: {meaning} ({_age(ago)} ago{again})"
            yield node, Finding(NAME, Grade.FAIL if bad else Grade.WARN, said, REMEDIES[kind])


def _by_gpu(reading: Any) -> dict[tuple[int, str], list[dict[str, Any]]]:
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows(reading, "xids"):
        xid = number(row, "xid")
        if xid is not None:
            found.setdefault((int(xid), text(row, "bus")), []).append(row)
    return found


def _class(xid: int, row: Mapping[str, Any]) -> tuple[str, str]:
    """The class and the meaning of one line; empty where it says nothing of the machine."""
    said = text(row, "said")
    if xid == ASKS:
        last = said.rpartition(" to ")[2]
        return next(
            ((kind, f"the driver says: {last}") for word, kind in _NEEDS.items() if word in last), ("", "")
        )
    kind, meaning = CLASSES.get(xid, ("", ""))
    harmless = 144 <= xid <= 150 and "nonfatal" in said.replace("-", "").lower()
    return (MONITOR if harmless else kind), meaning


def _rank(found: tuple[str, str]) -> int:
    return (REBOOT, RESET, MONITOR, "").index(found[0])


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
