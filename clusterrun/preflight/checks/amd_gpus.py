"""AMD's GPUs as amd-smi sees them: how many there are, memory in use, memory errors."""

from __future__ import annotations

import json
import os

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.visible_gpus import named
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.untrusted import number, rows, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "amd-gpus"
LIMIT = 15.0
LATE = Finding(
    NAME,
    Grade.FAIL,
    f"amd-smi gave no answer within {LIMIT:g} s",
    "the driver or a GPU hangs: look for amdgpu in dmesg, then reboot the node",
)
LATE_EVERYWHERE = Finding(
    NAME,
    Grade.WARN,
    f"amd-smi gave no answer within {LIMIT:g} s on any node",
    "time amd-smi metric on a node: its Python may lie on a slow file system",
)
_DEVICE = "/dev/kfd"
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_BUSY = "a process outlived its job: amd-smi process on the node; kill it, or ask who owns it"
_ECC = "drain the node and reset the GPU (amd-smi reset --gpureset) or reboot; if it comes again, replace it"


def probe(request: Asked) -> object:
    """What amd-smi tells of each GPU; nothing where the kernel has no driver of AMD's for computing."""
    if not os.path.exists(_DEVICE):
        return {"found": False}
    said = answer("amd-smi", "metric", "--mem-usage", "--ecc", "--json", seconds=LIMIT)
    given = next((devices for name in _VISIBLE if (devices := named(variables().get(name, "")))), [])
    return {
        "found": True,
        "code": said.code,
        "given": given,
        "gpus": of_text(said.out),
        "said": said.err[-300:],
    }


def of_text(text: str) -> list[dict[str, float]]:
    """One row for each GPU, of a list (ROCm 6) or ``gpu_data`` (ROCm 7); what it does not say is left out."""
    start = min((place for place in map(text.find, "[{") if place >= 0), default=-1)  # warnings come first
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return []
    whole = found if isinstance(found, list) else rows(found, "gpu_data")
    paths = {
        "memory": ("mem_usage", "total_vram"),
        "used": ("mem_usage", "used_vram"),
        "uncorrected": ("ecc", "total_uncorrectable_count"),
    }
    read = [{name: _value(one, path) for name, path in paths.items()} for one in rows({"all": whole}, "all")]
    return [{name: value for name, value in one.items() if value is not None} for one in read]


def _value(one: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    plain = number(one, *path)
    return number(one, *path, "value") if plain is None else plain


def judge(request: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail for missing GPUs and uncorrected errors, and for memory in use; silent without AMD's driver."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        there = rows(reading, "gpus")
        if not isinstance(reading, dict) or reading.get("found") is not True or not there:
            continue  # without amd-smi torch alone counts the GPUs
        if len(there) < request.gpus:
            said = f"amd-smi sees {len(there)} of {request.gpus} GPUs"
            remedy = "amd-smi list and dmesg | grep amdgpu on the node; reseat or replace the missing GPU"
            yield node, Finding(NAME, Grade.FAIL, said, remedy)
        given = words(reading, "given")
        ours = [name for name in given if name.isdecimal()]
        for index, gpu in enumerate(there):
            if given and len(ours) == len(given) and str(index) not in ours:
                continue
            errors, used = number(gpu, "uncorrected") or 0.0, number(gpu, "used") or 0.0
            share = used / (number(gpu, "memory") or float("inf"))
            if errors > 0:
                said = (
                    f"GPU {index}: {errors:.0f} uncorrected memory errors since the driver's start (limit 0)"
                )
                yield node, Finding(NAME, Grade.FAIL, said, _ECC)
            if share >= limits["gpu_memory_warn"]:
                heavy = share >= limits["gpu_memory_fail"]
                limit = limits["gpu_memory_fail" if heavy else "gpu_memory_warn"]
                said = f"GPU {index}: {used:.0f} MB of its memory in use ({share:.0%}, limit {limit:.0%})"
                yield node, Finding(NAME, Grade.FAIL if heavy else Grade.WARN, said, _BUSY)
