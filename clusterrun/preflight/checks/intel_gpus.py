"""Intel's GPUs as xpu-smi sees them: how many there are, memory in use before the job has begun."""

from __future__ import annotations

import time

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.visible_gpus import named
from clusterrun.preflight.checks.gpus import memory_in_use, unanswered
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.probes.run_program import answer, document
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, text, words

NAME = "intel-gpus"
LIMIT = 15.0
_SLOW = "time xpu-smi discovery -j on a node: the driver may be slow to start"
LATE, LATE_EVERYWHERE = unanswered(NAME, "xpu-smi", LIMIT, "i915 or xe", _SLOW)
_BUSY = "a process outlived its job: xpu-smi ps on the node; kill it, or ask who owns it"
_MISSING, _MOST = 127, 64
_ONE_SECONDS = 6.0


def probe(request: RunNeeds) -> object:
    """What the program tells of each GPU, and which of them are this job's; of some where time is up."""
    until = time.monotonic() + LIMIT - _ONE_SECONDS - 2
    said = answer("xpu-smi", "discovery", "-j", seconds=_ONE_SECONDS)
    if said.code == _MISSING:
        return {"found": False}
    there = [row for row in rows(document(said.out), "device_list") if row.get("device_type") != "CPU"]
    numbers = [int(one) for row in there[:_MOST] if (one := number(row, "device_id")) is not None]
    gpus = []
    for device in numbers:
        argv = ("xpu-smi", "discovery", "-d", str(device), "-j")
        more = answer(*argv, seconds=_ONE_SECONDS).out if time.monotonic() <= until else ""
        gpus.append({"number": device, **of_device(more)})
    seen = variables()
    flat = seen.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "COMPOSITE"
    return {"found": True, "gpus": gpus, "given": named(seen.get("ZE_AFFINITY_MASK", "")), "flat": flat}


def of_device(out: str) -> dict[str, float]:
    """Memory in MiB, how much of it is in use, and how many tiles: the program tells numbers as text, too."""
    found = document(out)
    columns = ("memory_physical_size_byte", "memory_free_size_byte", "number_of_tiles")
    whole, free, tiles = (_number(found, column) for column in columns)
    told = {"tiles": tiles}
    if whole and free is not None and free <= whole:
        told.update(memory=whole / (1 << 20), used=(whole - free) / (1 << 20))
    return {name: value for name, value in told.items() if value}


def _number(found: object, column: str) -> float | None:
    value = text(found, column)
    return float(value) if value.isdecimal() else number(found, column)


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail for missing GPUs and for much memory in use; silent if no node has the program or a GPU."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        there = rows(reading, "gpus")
        if not there:
            continue  # torch alone counts the GPUs
        tiles = int(sum(number(gpu, "tiles") or 1 for gpu in there))
        if tiles < request.gpus:
            said = f"xpu-smi sees {len(there)} GPUs ({tiles} tiles), and {request.gpus} were asked for"
            remedy = "xpu-smi discovery and dmesg | grep -e i915 -e xe on the node; reseat the missing GPU"
            yield node, Finding(NAME, Grade.FAIL, said, remedy)
        ours = _ours(there, words(reading, "given"), reading.get("flat") is True)
        for gpu in there:
            grade, said = memory_in_use(gpu, limits)
            if gpu in ours and grade is not Grade.PASS:
                which = f"GPU {number(gpu, 'number') or 0:.0f}"
                yield node, Finding(NAME, grade, f"{which}: {said}", _BUSY)


def _ours(there: list[dict[str, object]], given: list[str], flat: bool) -> list[dict[str, object]]:
    """The GPUs that ``ZE_AFFINITY_MASK`` names, which counts tiles where ``flat``."""
    places = [gpu for gpu in there for _ in range(int(number(gpu, "tiles") or 1) if flat else 1)]
    heads = [name.partition(".")[0] for name in given]
    chosen_ones = [places[int(one)] for one in heads if one.isdecimal() and int(one) < len(places)]
    return chosen_ones if len(chosen_ones) == len(given) and given else there
