"""Check Intel GPUs with xpu-smi: their number, and memory in use before the job begins."""

from __future__ import annotations

import time

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.visible_gpus import named
from clusterrun.preflight.checks.gpus import memory_in_use, unanswered
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.probes.run_program import answer, document
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, strings, text

NAME = "intel-gpus"
LIMIT = 15.0
_SLOW = "time xpu-smi discovery -j on a node: the driver may be slow to start"
LATE, LATE_EVERYWHERE = unanswered(NAME, "xpu-smi", LIMIT, "i915 or xe", _SLOW)
_BUSY = "a process outlived its job: xpu-smi ps on the node; kill it, or ask who owns it"
_MISSING, _MOST = 127, 64
_ONE_SECONDS = 6.0


def probe(request: RunNeeds) -> object:
    """Return what xpu-smi reports of each GPU, and which belong to this job. Query fewer if time runs out."""
    until = time.monotonic() + LIMIT - _ONE_SECONDS - 2
    reply = answer("xpu-smi", "discovery", "-j", seconds=_ONE_SECONDS)
    if reply.code == _MISSING:
        return {"has_driver": False}
    gpu_rows = [row for row in rows(document(reply.out), "device_list") if row.get("device_type") != "CPU"]
    numbers = [
        int(device_id) for row in gpu_rows[:_MOST] if (device_id := number(row, "device_id")) is not None
    ]
    gpus = []
    for device in numbers:
        argv = ("xpu-smi", "discovery", "-d", str(device), "-j")
        details = answer(*argv, seconds=_ONE_SECONDS).out if time.monotonic() <= until else ""
        gpus.append({"number": device, **of_device(details)})
    environment = variables()
    flat = environment.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "COMPOSITE"
    return {
        "has_driver": True,
        "gpus": gpus,
        "visible": named(environment.get("ZE_AFFINITY_MASK", "")),
        "flat": flat,
    }


def of_device(out: str) -> dict[str, float]:
    """Return memory and used memory in MiB, and the number of tiles. xpu-smi prints some numbers as text."""
    fields = document(out)
    columns = ("memory_physical_size_byte", "memory_free_size_byte", "number_of_tiles")
    total, free, tiles = (_number(fields, column) for column in columns)
    reading = {"tiles": tiles}
    if total and free is not None and free <= total:
        reading.update(memory=total / (1 << 20), used=(total - free) / (1 << 20))
    return {name: value for name, value in reading.items() if value}


def _number(fields: object, column: str) -> float | None:
    value = text(fields, column)
    return float(value) if value.isdecimal() else number(fields, column)


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail for missing GPUs and for much memory in use. Skip nodes without xpu-smi or without a GPU."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        gpus = rows(reading, "gpus")
        if not gpus:
            continue  # The torch check counts the GPUs.
        tiles = int(sum(number(gpu, "tiles") or 1 for gpu in gpus))
        if tiles < request.gpus:
            message = f"xpu-smi sees {len(gpus)} GPUs ({tiles} tiles), and {request.gpus} were asked for"
            remedy = "xpu-smi discovery and dmesg | grep -e i915 -e xe on the node; reseat the missing GPU"
            yield node, Finding(NAME, Grade.FAIL, message, remedy)
        own_gpus = _ours(gpus, strings(reading, "visible"), reading.get("flat") is True)
        for gpu in gpus:
            grade, message = memory_in_use(gpu, limits)
            if gpu in own_gpus and grade is not Grade.PASS:
                label = f"GPU {number(gpu, 'number') or 0:.0f}"
                yield node, Finding(NAME, grade, f"{label}: {message}", _BUSY)


def _ours(gpus: list[dict[str, object]], mask: list[str], flat: bool) -> list[dict[str, object]]:
    """Return the GPUs that ``ZE_AFFINITY_MASK`` names. Its numbers count tiles if ``flat``."""
    places = [gpu for gpu in gpus for _ in range(int(number(gpu, "tiles") or 1) if flat else 1)]
    heads = [name.partition(".")[0] for name in mask]
    selected = [places[int(head)] for head in heads if head.isdecimal() and int(head) < len(places)]
    return selected if len(selected) == len(mask) and mask else gpus
