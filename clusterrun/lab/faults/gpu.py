"""Faults of GPUs, shown by a host's stand-in for `nvidia-smi` and by its kernel log."""

from __future__ import annotations

import json
import time
from typing import Any

from clusterrun.lab.faults.kinds import FaultType
from clusterrun.lab.place import Fault, write_whole
from clusterrun.lab.site import LabSite
from clusterrun.lab.standins.nvidia_smi import BUSES
from clusterrun.model.errors import BadInput

XIDS = {
    13: "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 1): Illegal Instruction",
    31: "MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_0 faulted @ 0x7f3a_c0000000",
    48: "Double Bit ECC Error",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap row",
    74: "NVLink: fatal error detected on link 4",
    79: "GPU has fallen off the bus.",
    94: "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU GSP!",
}
LOST = 79
WORDS = frozenset({"count", "hang", "driver", "xid", "ecc", "remap", "throttle", "index"})


def write_gpus(site: LabSite, host: str, faults: list[Fault]) -> None:
    """Write the state that the host's stand-ins report with these faults in force."""
    folder = site.place.host(host)
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"count": site.state.spec.gpus, "each": {}, "lost": []}
    log: list[tuple[float, str]] = []
    for fault in faults:
        index = fault.get("index") or "0"
        document.update({key: True for key in ("hang", "driver") if fault.get(key)})
        if fault.get("count"):
            document["count"] = int(fault.get("count"))
        values: dict[str, object] = {}
        if fault.get("ecc"):
            values["ecc.errors.uncorrected.volatile.total"] = int(fault.get("ecc"))
            values["ecc.errors.uncorrected.aggregate.total"] = int(fault.get("ecc"))
            values["gpu_recovery_action"] = "Reset"  # the driver could not contain the error
        if fault.get("remap"):
            values["remapped_rows.pending"] = int(fault.get("remap"))
        if fault.get("throttle"):
            values["clocks_event_reasons.active"] = "0x0000000000000048"
            values["clocks_event_reasons.hw_slowdown"] = "Active"
            values["clocks_event_reasons.hw_thermal_slowdown"] = "Active"
            values["temperature.gpu"] = 89
        document["each"].setdefault(index, {}).update(values)
        if fault.get("xid"):
            place = int(index)
            xid = int(fault.get("xid"))
            bus = f"{place // len(BUSES):04x}:{BUSES[place % len(BUSES)].lower()}:00"
            text = XIDS.get(xid, "unknown error")
            line = f"NVRM: Xid (PCI:{bus}): {xid}, pid='<unknown>', name=<unknown>, {text}"
            log.append((float(fault.get("at")), line))
            document["lost"] += [place] if xid == LOST else []
    write_whole(folder / "gpu.json", json.dumps(document))
    write_whole(folder / "kernel.log", "".join(f"{at:f} {text}\n" for at, text in log))
    # Written in place: the host has this very file as its /dev/kmsg.
    start = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    with site.place.kernel_messages(host).open("w") as records:
        for number, (at, text) in enumerate(log, 1):
            # Level and facility, number, microseconds since the start, flags; text.
            records.write(f"3,{number},{int((at - start) * 1e6)},-;{text}\n")


def _apply(site: LabSite, fault: Fault) -> Fault:
    site.node(fault.host)
    gpus = site.state.spec.gpus
    if not gpus:
        raise BadInput("the nodes of this lab have no GPUs", "start one with --gpus 8")
    for key in ("count", "xid", "ecc", "remap", "index"):
        if fault.get(key) and not fault.get(key).isdigit():
            raise BadInput(f"--{key} {fault.get(key)} is not a number", "0 or more")
    if int(fault.get("index") or 0) >= gpus:
        raise BadInput(f"{fault.host} has no GPU {fault.get('index')}", f"0 to {gpus - 1}")
    if not any(fault.get(key) for key in WORDS - {"index"}):
        raise BadInput(
            "say what is wrong with the GPU", "--count, --hang, --driver, --xid, --ecc, --remap or --throttle"
        )
    recorded = fault.with_details(at=f"{time.time():.6f}")
    write_gpus(site, fault.host, [*_others(site, fault), recorded])
    return recorded


def _others(site: LabSite, fault: Fault) -> list[Fault]:
    return [f for f in site.state.faults if f.kind == "gpu" and f.host == fault.host and f != fault]


def _heal(site: LabSite, fault: Fault) -> None:
    write_gpus(site, fault.host, _others(site, fault))


KINDS = (FaultType("gpu", WORDS, _apply, _heal),)
