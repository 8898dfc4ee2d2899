"""Xid errors in the kernel's log: what the NVIDIA driver wrote there about a GPU, and how bad it is.

The classes follow NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, its immediate action): some ask for
a reboot, some for a reset of the GPU, some are worth a look; all others are of programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import kernel_log
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, text

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
    46: (RESET, "the GPU stopped processing"),
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
    155: (RESET, "an NVLink error that software defines"),
    156: (RESET, "a part of the GPU was retired"),
    151: (REBOOT, "keys of confidential computing could not be changed"),
    157: (MONITOR, "a part of the GPU could not be retired"),
    158: (RESET, "a fatal timeout of the GPU"),
    167: (RESET, "a fatal timeout of PCIe"),
    168: (MONITOR, "the GPU has less memory: errors in its protected region"),
}
_RESET_IT = "drain the node and reset the GPU (nvidia-smi -r)"
OWN_REMEDIES = {
    48: f"{_RESET_IT}; with Xid 64, or if nvidia-smi -q -d ECC says SRAM Threshold Exceeded, replace it",
    54: "look at the power cables of the GPU, then reboot the node",
    74: f"{_RESET_IT}; if it comes again: nvidia-smi nvlink -e names the link",
    79: "switch the node off and on: a reboot may not bring the GPU back; if it comes again, reseat it",
    119: f"{_RESET_IT}, or reboot; if it comes again, try a newer driver",
    120: f"{_RESET_IT}, or reboot; if it comes again, try a newer driver",
    136: f"{_RESET_IT}; if it comes again, look at the link's cable and baseboard",
    156: f"{_RESET_IT}: it does without that part then",
}
"""What to do where it is more than that of the class."""
ASKS = 154
"""Not an error of its own: the driver says what the GPU needs now."""
_NEEDS = {"1": RESET, "2": REBOOT, "3": MONITOR, "4": RESET, "5": RESET, "6": RESET, "7": REBOOT}
"""By the action's number (nvmlDeviceGpuRecoveryAction_t): its words differ over drivers."""
_ACTION = re.compile(r" to 0x([0-9a-f]+) \((.*?)\)")
_SWITCH = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d+), Fatal, (.*)")
"""An error of an NVSwitch; those that are not fatal need nothing (Fabric Manager's guide)."""
SWITCHES = "NVSwitch"
_LINK_DOWN = 20034
"""Also when a GPU behind the link is reset: a GPU that is lost says so itself."""
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+),? ?(.*)")
_FALLEN = re.compile(r"NVRM: .*GPU ([0-9A-Fa-f:.]+).*fallen off the bus")
"""The same failure beside its Xid, or at the driver's start, when there is no Xid yet."""
_AT_START = "is not responding to commands"
"""Of the line at the driver's start: it comes before the one that says that the driver is loaded."""
_LOADED = "NVRM: loading NVIDIA"
_MOST = 200
REMEDIES = {
    REBOOT: "reboot the node; if it comes again, have the GPU replaced",
    RESET: "drain the node and reset the GPU (nvidia-smi -r); if it comes again, have it replaced",
    MONITOR: "watch it; a reset of the GPU clears it",
}

_SWITCH_REMEDY = "drain the node and reboot it: GPUs and NVSwitches are to be reset together"


def probe(request: RunNeeds) -> object:
    """Every Xid and SXid since the driver was loaded last, and how many GPUs the machine has."""
    log = kernel_log.lines()
    installed = len(proc.listed("/proc/driver/nvidia/gpus"))
    return {"readable": log is not None, "xids": of_lines(log or []), "installed": installed}


def of_lines(log: list[tuple[float, str]]) -> list[dict[str, object]]:
    """The Xid errors in a log; those from before the driver was loaded again are over."""
    found: list[dict[str, object]] = []
    started: list[dict[str, object]] = []  # seen while the driver starts
    for ago, line in log:
        if _LOADED in line:
            found, started = started, []
        match, fallen, switch = _LINE.search(line), _FALLEN.search(line), _SWITCH.search(line)
        if switch:
            row = {"xid": int(switch[2]), "bus": switch[1], "ago": round(ago), "said": switch[3][:120]}
            found.append({**row, "of": SWITCHES})
        elif match:
            said = match[3].rpartition("name=<unknown>, ")[2]
            found.append({"xid": int(match[2]), "bus": match[1], "ago": round(ago), "said": said[:120]})
        elif fallen and not any(row["xid"] == 79 and fallen[1].startswith(str(row["bus"])) for row in found):
            found.append({"xid": 79, "bus": fallen[1], "ago": round(ago), "said": ""})
            started += found[-1:] if _AT_START in line else []
    return found[-_MOST:]


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """One finding for each GPU and number, about the last time; none for a log that may not be read."""
    fresh = chosen(request.limits)["xid_hours"] * 3600
    for node, reading in readings.items():
        # Where the job has only some of the machine's GPUs the error may be of another's.
        ours = request.gpus >= (number(reading, "installed") or 0)
        for (xid, of), rows_of_one in _by_device(reading).items():
            ago = min(number(row, "ago") or 0.0 for row in rows_of_one)
            counted = rows_of_one[-1:] if xid == f"Xid {ASKS}" else rows_of_one  # what is needed now
            order = (REBOOT, RESET, MONITOR, "")
            kind, meaning = min(map(_class, counted), key=lambda found: order.index(found[0]))
            if not kind or (kind == MONITOR and ago > fresh):
                continue
            bad = ours and (kind == REBOOT or (kind == RESET and ago <= fresh))
            again = f", {len(rows_of_one)} times" if len(rows_of_one) > 1 else ""
            said = f"{xid} of {of}: {meaning} ({_age(ago)} ago{again})"
            known = "" if kind == MONITOR else OWN_REMEDIES.get(int(number(counted[0], "xid") or 0), "")
            remedy = _SWITCH_REMEDY if xid.startswith("S") else known or REMEDIES[kind]
            yield node, Finding(NAME, Grade.FAIL if bad else Grade.WARN, said, remedy)


def _by_device(reading: object) -> dict[tuple[str, str], list[dict[str, object]]]:
    """The rows by error and device, each with its name; oldest first."""
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for row in rows(reading, "xids"):
        xid = number(row, "xid")
        if xid is not None:
            kind, device = ("SXid", SWITCHES) if text(row, "of") == SWITCHES else ("Xid", "GPU")
            found.setdefault((f"{kind} {xid:.0f}", f"{device} {text(row, 'bus')}"), []).append(row)
    return found


def _class(row: Mapping[str, object]) -> tuple[str, str]:
    """The class and the meaning of one line; empty if it says nothing of the machine."""
    said, xid = text(row, "said"), int(number(row, "xid") or 0)
    if text(row, "of") == SWITCHES:
        return (MONITOR if xid == _LINK_DOWN else RESET), said
    if xid == ASKS:
        action = _ACTION.search(said)
        kind = _NEEDS.get(action[1], "") if action else ""
        return (kind, f"the driver asks for: {action[2]}") if action and kind else ("", "")
    kind, meaning = CLASSES.get(xid, ("", ""))
    harmless = 144 <= xid <= 150 and "nonfatal" in said.replace("-", "").lower()
    return (MONITOR if harmless else kind), meaning


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
