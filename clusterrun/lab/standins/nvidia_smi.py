"""A stand-in for `nvidia-smi`: it prints the output of the real program for the GPUs of a lab's host.

A program of its own (`python -I -S nvidia_smi.py LAB_FOLDER ARGS…`), on the PATH of every host. It
imports nothing of the package. Its answers come from gpu.json of the lab or of the host.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import uuid
from datetime import datetime
from typing import Any, NoReturn

NAME, MEMORY_MIB, DRIVER, CUDA = "NVIDIA H100 80GB HBM3", 81559, "550.54.15", "12.4"
BUSES = ("1B", "29", "45", "4E", "9B", "AD", "CD", "DC")

UNITS = {
    **dict.fromkeys(("memory.total", "memory.used", "memory.free", "memory.reserved"), "MiB"),
    **dict.fromkeys(("utilization.gpu", "utilization.memory"), "%"),
    **dict.fromkeys(("power.draw", "power.draw.instant", "power.limit", "power.max_limit"), "W"),
    "enforced.power.limit": "W",
    **dict.fromkeys(("clocks.current.sm", "clocks.current.graphics", "clocks.current.memory"), "MHz"),
    **dict.fromkeys(("clocks.max.sm", "clocks.max.memory"), "MHz"),
}
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "clocks.sm": "clocks.current.sm",
    "clocks.gr": "clocks.current.graphics",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.mem": "clocks.max.memory",
    "clocks.max.gr": "clocks.max.sm",
}
ALWAYS: dict[str, object] = {
    "name": NAME,
    "driver_version": DRIVER,
    "vbios_version": "96.00.61.00.01",
    "memory.total": MEMORY_MIB,
    "memory.used": 1,
    "memory.free": MEMORY_MIB - 546,
    "memory.reserved": 545,
    "utilization.gpu": 0,
    "utilization.memory": 0,
    "temperature.gpu": 31,
    "temperature.memory": 38,
    "power.draw": "70.55",
    "power.draw.instant": "70.55",
    "power.limit": "700.00",
    "enforced.power.limit": "700.00",
    "power.max_limit": "700.00",
    "clocks.current.sm": 345,
    "clocks.current.graphics": 345,
    "clocks.current.memory": 2619,
    "clocks.max.sm": 1980,
    "clocks.max.memory": 2619,
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "mig.mode.current": "Disabled",
    "pstate": "P0",
    "pcie.link.gen.current": 5,
    "pcie.link.gen.max": 5,
    "pcie.link.width.current": 16,
    "pcie.link.width.max": 16,
    "ecc.mode.current": "Enabled",
    "ecc.errors.corrected.volatile.total": 0,
    "ecc.errors.corrected.aggregate.total": 0,
    "ecc.errors.uncorrected.volatile.total": 0,
    "ecc.errors.uncorrected.aggregate.total": 0,
    "retired_pages.pending": "N/A",
    "remapped_rows.correctable": 0,
    "remapped_rows.uncorrectable": 0,
    "remapped_rows.pending": 0,
    "remapped_rows.failure": 0,
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "gpu_recovery_action": "None",
    "clocks_event_reasons.active": "0x0000000000000001",
    "clocks_event_reasons.supported": "0x00000000000001FF",
    "clocks_event_reasons.gpu_idle": "Active",
    "clocks_event_reasons.sw_power_cap": "Not Active",
    "clocks_event_reasons.hw_slowdown": "Not Active",
    "clocks_event_reasons.hw_thermal_slowdown": "Not Active",
    "clocks_event_reasons.hw_power_brake_slowdown": "Not Active",
    "clocks_event_reasons.sw_thermal_slowdown": "Not Active",
}


def _gpus(folder: str) -> dict[str, Any]:
    for path in (f"{folder}/hosts/{os.uname().nodename}/gpu.json", f"{folder}/gpu.json"):
        try:
            with open(path, encoding="utf-8") as file:
                state: dict[str, Any] = json.load(file)
                return state
        except FileNotFoundError:
            continue
    return {"count": 0}


def _bus(index: int) -> str:
    return f"{index // len(BUSES):08X}:{BUSES[index % len(BUSES)]}:00.0"


def _number(index: int) -> uuid.UUID:
    """Return the same 128 bits for the same GPU in every process."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{os.uname().nodename}/{index}")


def _uuid(index: int) -> str:
    return f"GPU-{_number(index)}"


def _values(index: int, state: dict[str, Any]) -> dict[str, object]:
    now = datetime.now()
    own = {
        "index": index,
        "count": state["count"],
        "uuid": _uuid(index),
        "serial": str(1650000000000 + _number(index).int % 10**9),
        "pci.bus_id": _bus(index),
        "timestamp": now.strftime("%Y/%m/%d %H:%M:%S.") + f"{now.microsecond // 1000:03d}",
    }
    return {**ALWAYS, **own, **state.get("each", {}).get(str(index), {})}


def _stop(text: str, code: int) -> NoReturn:
    print(text)
    raise SystemExit(code)


def _field(query: str) -> str:
    name = query.replace("clocks_throttle_reasons.", "clocks_event_reasons.")
    return ALIASES.get(name, name)


def _header(query: str) -> str:
    unit = UNITS.get(_field(query))
    label = _field(query) if "clocks" in query and "reasons" not in query else query
    return f"{label} [{unit}]" if unit else label


def _cell(query: str, values: dict[str, object], with_units: bool) -> str:
    name = _field(query)
    unit = UNITS.get(name, "")
    return f"{values[name]} {unit}" if unit and with_units else str(values[name])


def _table(indices: list[int], state: dict[str, Any]) -> None:
    print(time.strftime("%a %b %e %H:%M:%S %Y"))
    line = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    print("+" + "-" * 89 + "+")
    head = f"| NVIDIA-SMI {DRIVER:<22}  Driver Version: {DRIVER:<14} CUDA Version: {CUDA}"
    print(f"{head:<90}|")
    print("|" + line[1:-1] + "|")
    for index in indices:
        v = _values(index, state)
        watts = [f"{float(str(v[key])):.0f}W" for key in ("power.draw", "power.limit")]
        used = f"{v['memory.used']}MiB / {v['memory.total']}MiB"
        for cells in (
            (
                f" {index:>3}  {v['name']} On",
                f"{v['pci.bus_id']} Off",
                v["ecc.errors.uncorrected.volatile.total"],
            ),
            (
                f" N/A  {v['temperature.gpu']:>3}C   {v['pstate']}   {' / '.join(watts)}",
                used,
                f"{v['utilization.gpu']}%      Default",
            ),
        ):
            print(f"|{cells[0]:<41}|{cells[1]:>23} |{cells[2]!s:>21} |")
        print(line)
    print("|  No running processes found" + " " * 61 + "|")
    print("+" + "-" * 89 + "+")


def _options(arguments: list[str]) -> dict[str, str]:
    """{'--query-gpu': 'name', '-i': '3', …}; `--x=y`, `--x y` and flags alike."""
    options: dict[str, str] = {}
    takes = {"-i", "--id", "--format", "-f", "--filename", "--query-gpu"}
    position = 0
    while position < len(arguments):
        name, equals, value = arguments[position].partition("=")
        if not equals and name in takes and position + 1 < len(arguments):
            position += 1
            value = arguments[position]
        options[name] = value
        position += 1
    return options


def _chosen(options: dict[str, str], state: dict[str, Any]) -> list[int]:
    selector = options.get("-i") or options.get("--id")
    every = range(state["count"])
    if not selector:
        return list(every)
    chosen = [i for i in every if {str(i), _uuid(i), _bus(i)} & set(selector.split(","))]
    if not chosen:
        _stop("No devices were found", 6)
    return chosen


def main() -> None:
    """Answer one call."""
    state, arguments = _gpus(sys.argv[1]), sys.argv[2:]
    options = _options(arguments)
    if "--version" in options:
        _stop(
            f"NVIDIA-SMI version  : {DRIVER}\nDRIVER version      : {DRIVER}\nCUDA Version        : {CUDA}", 0
        )
    while state.get("hang"):
        time.sleep(3600)
    if state.get("driver"):
        _stop(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n",
            9,
        )
    for index in state.get("lost", []):
        _stop(
            f"Unable to determine the device handle for GPU{index}: {_bus(index)[4:]}: "
            "GPU is lost.  Reboot the system to recover this GPU",
            15,
        )
    if not state["count"]:
        _stop("No devices were found", 6)
    indices = _chosen(options, state)
    formats = [part.strip() for part in options.get("--format", "").split(",")]
    queries = [name for name in options if name.startswith("--query-")]
    if "-L" in options or "--list-gpus" in options:
        for index in indices:
            print(f"GPU {index}: {NAME} (UUID: {_uuid(index)})")
    elif queries and queries[0] in ("--query-gpu", "--query-remapped-rows"):
        names = [part.strip() for part in options[queries[0]].split(",")]
        if "csv" not in formats:
            _stop('"--format=" switch is missing. Please run with "--help" for a list of valid options.', 2)
        known_values = _values(0, state)
        for name in names:
            if _field(name) not in known_values:
                _stop(f'Field "{name}" is not a valid field to query.\n', 2)
        if "noheader" not in formats:
            print(", ".join(_header(name) for name in names))
        for index in indices:
            values = _values(index, state)
            print(", ".join(_cell(name, values, "nounits" not in formats) for name in names))
    elif queries == ["--query-compute-apps"]:
        if "noheader" not in formats:
            print(options[queries[0]].replace(",", ", ").replace("used_memory", "used_gpu_memory [MiB]"))
    elif set(options) - {"-i", "--id"} in ({"-q", "-x"}, {"-q", "--xml-format"}):
        # This program is started without a folder to import from, so the other half is loaded by its path.
        other_half = runpy.run_path(os.path.splitext(__file__)[0] + "_xml.py")
        print(other_half["log"](DRIVER, CUDA, [_values(index, state) for index in indices]))
    elif not set(options) - {"-i", "--id"}:
        _table(indices, state)
    else:
        _stop(
            f"Invalid combination of input arguments: the lab's stand-in does not know {' '.join(arguments)}",
            2,
        )


if __name__ == "__main__":
    main()
