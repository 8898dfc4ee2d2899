"""Judge the Xid errors that the NVIDIA driver wrote to the kernel's log.

The classes follow the immediate action in NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors). Some errors
require a reboot, some a reset of the GPU, some only monitoring. Programs cause all other errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import kernel_log
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, strings, text

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
# Remedies that differ from those of the class.
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
# Not an error: the driver reports what the GPU needs now.
ASKS = 154
# Class by the number of the action (nvmlDeviceGpuRecoveryAction_t). Its text differs between drivers.
_NEEDS = {"1": RESET, "2": REBOOT, "3": MONITOR, "4": RESET, "5": RESET, "6": RESET, "7": REBOOT}
_ACTION = re.compile(r" to 0x([0-9a-f]+) \((.*?)\)")
# A fatal error of an NVSwitch. Other errors require nothing (Fabric Manager's guide).
_SWITCH = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d+), Fatal, (.*)")
SWITCHES = "NVSwitch"
# Also logged when the GPU behind the link is reset. A lost GPU has an error of its own.
_LINK_DOWN = 20034
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+),? ?(.*)")
# The failure of Xid 79, logged in addition to the Xid, or at the driver's start without an Xid.
_FALLEN = re.compile(r"NVRM: .*GPU ([0-9A-Fa-f:.]+).*fallen off the bus")
# Part of the line at the driver's start, which precedes the line about the loaded driver.
_AT_START = "is not responding to commands"
_LOADED = "NVRM: loading NVIDIA"
_MOST = 200
REMEDIES = {
    REBOOT: "reboot the node; if it comes again, have the GPU replaced",
    RESET: "drain the node and reset the GPU (nvidia-smi -r); if it comes again, have it replaced",
    MONITOR: "watch it; a reset of the GPU clears it",
}

_SWITCH_REMEDY = "drain the node and reboot it: GPUs and NVSwitches are to be reset together"


def probe(request: RunNeeds) -> object:
    """Return every Xid and SXid since the last load of the driver, and the number of GPUs of the machine."""
    log = kernel_log.lines()
    installed = len(proc.listed("/proc/driver/nvidia/gpus"))
    return {"readable": log is not None, "xids": of_lines(log or []), "installed": installed}


def of_lines(log: list[tuple[float, str]]) -> list[dict[str, object]]:
    """Return the Xid errors in a log since the last load of the driver."""
    errors: list[dict[str, object]] = []
    started: list[dict[str, object]] = []  # errors while the driver starts
    for ago, line in log:
        if _LOADED in line:
            errors, started = started, []
        match, fallen, switch = _LINE.search(line), _FALLEN.search(line), _SWITCH.search(line)
        if switch:
            row = {"xid": int(switch[2]), "bus": switch[1], "ago": round(ago), "message": switch[3][:120]}
            errors.append({**row, "of": SWITCHES})
        elif match:
            description = match[3].rpartition("name=<unknown>, ")[2]
            errors.append(
                {"xid": int(match[2]), "bus": match[1], "ago": round(ago), "message": description[:120]}
            )
        elif fallen and not any(row["xid"] == 79 and fallen[1].startswith(str(row["bus"])) for row in errors):
            errors.append({"xid": 79, "bus": fallen[1], "ago": round(ago), "message": ""})
            started += errors[-1:] if _AT_START in line else []
    return errors[-_MOST:]


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Yield one finding per GPU and error number, with the age of the last error."""
    fresh = chosen(request.limits)["xid_hours"] * 3600
    for node, reading in readings.items():
        # The error may belong to another job's GPU if this job has only some of the machine's GPUs.
        has_whole_node = request.gpus >= (number(reading, "installed") or 0)
        # The rows by the names of error and device, oldest first.
        rows_by_device: dict[tuple[str, str], list[dict[str, object]]] = {}
        for row in rows(reading, "xids"):
            number_of_error = number(row, "xid")
            if number_of_error is not None:
                kind, device = ("SXid", SWITCHES) if text(row, "of") == SWITCHES else ("Xid", "GPU")
                key = (f"{kind} {number_of_error:.0f}", f"{device} {text(row, 'bus')}")
                rows_by_device.setdefault(key, []).append(row)
        for (xid, device), device_rows in rows_by_device.items():
            ago = min(number(row, "ago") or 0.0 for row in device_rows)
            # Only the driver's last request is current.
            counted = device_rows[-1:] if xid == f"Xid {ASKS}" else device_rows
            order = (REBOOT, RESET, MONITOR, "")
            kind, meaning = min(map(_class, counted), key=lambda row_class: order.index(row_class[0]))
            if not kind or (kind == MONITOR and ago > fresh):
                continue
            # The driver of 570 and newer says that the GPU needs no reset: it had one, or a program failed.
            # Its log shortens the PCI domain.
            part, _, bus = device.partition(" ")
            recovered = strings(reading, "recovered") if kind == RESET and part == "GPU" else []
            is_over = any(name[4:].startswith(bus.lower()) for name in recovered)
            bad = has_whole_node and not is_over and (kind == REBOOT or (kind == RESET and ago <= fresh))
            times = f", {len(device_rows)} times" if len(device_rows) > 1 else ""
            age = f"{ago:.0f} s"
            for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
                if ago >= 2 * length:
                    age = f"{ago / length:.0f} {unit}"
                    break
            message = f"{xid} of {device}: {meaning} ({age} ago{times})"
            message += "; the driver asks for no recovery now" if is_over else ""
            own_remedy = "" if kind == MONITOR else OWN_REMEDIES.get(int(number(counted[0], "xid") or 0), "")
            remedy = _SWITCH_REMEDY if xid.startswith("S") else own_remedy or REMEDIES[kind]
            yield node, Finding(NAME, Grade.FAIL if bad else Grade.WARN, message, remedy)


def _class(row: Mapping[str, object]) -> tuple[str, str]:
    """Return the class and the meaning of one log line, or empty strings if it is no hardware error."""
    description, xid = text(row, "message"), int(number(row, "xid") or 0)
    if text(row, "of") == SWITCHES:
        return (MONITOR if xid == _LINK_DOWN else RESET), description
    if xid == ASKS:
        action = _ACTION.search(description)
        kind = _NEEDS.get(action[1], "") if action else ""
        return (kind, f"the driver asks for: {action[2]}") if action and kind else ("", "")
    kind, meaning = CLASSES.get(xid, ("", ""))
    harmless = 144 <= xid <= 150 and "nonfatal" in description.replace("-", "").lower()
    return (MONITOR if harmless else kind), meaning
