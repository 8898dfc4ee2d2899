"""AMD's GPUs as amd-smi sees them: how many there are, memory in use, memory errors.

Releases of ROCm that have no amd-smi have rocm-smi, which tells of all but the errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.visible_gpus import named
from clusterrun.preflight.checks.gpus import memory_in_use, unanswered
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.probes.run_program import answer, document
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, number, rows, text, words

NAME = "amd-gpus"
LIMIT = 15.0
_SLOW = "time amd-smi metric, or time rocm-smi, on a node: its Python may lie on a slow file system"
LATE, LATE_EVERYWHERE = unanswered(NAME, "amd-smi (rocm-smi, where there is none)", LIMIT, "amdgpu", _SLOW)
_DEVICE = "/dev/kfd"
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_BUSY = (
    "a process outlived its job: amd-smi process, or rocm-smi --showpids, on the node; "
    "kill it, or ask who owns it"
)
_MISSING = 127
_MIB = 1 << 20
_ECC = "drain the node and reset the GPU (amd-smi reset --gpureset) or reboot; if it comes again, replace it"


def probe(request: RunNeeds) -> object:
    """What the program tells of each GPU; nothing where the kernel has no driver of AMD's for computing."""
    if not os.path.exists(_DEVICE):
        return {"found": False}
    program, read = "amd-smi", of_text
    said = answer(program, "metric", "--mem-usage", "--ecc", "--json", seconds=LIMIT)
    if said.code == _MISSING:
        program, read = "rocm-smi", of_cards
        said = answer(program, "--showmeminfo", "vram", "--json", seconds=LIMIT)
    given = next((devices for name in _VISIBLE if (devices := named(variables().get(name, "")))), [])
    return {
        "found": True,
        "code": said.code,
        "given": given,
        "program": program,
        "gpus": read(said.out),
        "said": said.err[-300:],
    }


def of_text(out: str) -> list[dict[str, float]]:
    """One row for each GPU, of a list (ROCm 6) or ``gpu_data`` (ROCm 7); what it does not say is left out."""
    found = document(out, "[{")
    whole = found if isinstance(found, list) else rows(found, "gpu_data")
    paths = {
        "memory": ("mem_usage", "total_vram"),
        "used": ("mem_usage", "used_vram"),
        "uncorrected": ("ecc", "total_uncorrectable_count"),
    }
    read = [{name: _value(one, path) for name, path in paths.items()} for one in rows(whole)]
    return [{name: value for name, value in one.items() if value is not None} for one in read]


def of_cards(out: str) -> list[dict[str, float]]:
    """The same of rocm-smi, which tells bytes as text by card, in the order of their numbers; no errors."""
    found = document(out)
    names = (name for name in entries(found) if name[:4] == "card" and name[4:].isdecimal())
    cards = [entries(found, name) for name in sorted(names, key=lambda name: int(name[4:]))]
    columns = {"memory": "VRAM Total Memory (B)", "used": "VRAM Total Used Memory (B)"}
    told = [{name: str(card.get(column)) for name, column in columns.items()} for card in cards]
    return [{name: int(one) / _MIB for name, one in row.items() if one.isdecimal()} for row in told]


def _value(one: Mapping[str, object], path: tuple[str, ...]) -> float | None:
    plain = number(one, *path)
    return number(one, *path, "value") if plain is None else plain


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail for missing GPUs and uncorrected errors, and for memory in use; silent without AMD's driver."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        there = rows(reading, "gpus")
        if not isinstance(reading, dict) or reading.get("found") is not True or not there:
            continue  # without amd-smi torch alone counts the GPUs
        if len(there) < request.gpus:
            program = "rocm-smi" if text(reading, "program") == "rocm-smi" else "amd-smi"
            said = f"{program} sees {len(there)} of {request.gpus} GPUs"
            remedy = f"{program} and dmesg | grep amdgpu on the node; reseat or replace the missing GPU"
            yield node, Finding(NAME, Grade.FAIL, said, remedy)
        given = words(reading, "given")
        ours = [name for name in given if name.isdecimal()]
        for index, gpu in enumerate(there):
            if given and len(ours) == len(given) and str(index) not in ours:
                continue
            errors = number(gpu, "uncorrected") or 0.0
            if errors > 0:
                said = (
                    f"GPU {index}: {errors:.0f} uncorrected memory errors since the driver's start (limit 0)"
                )
                yield node, Finding(NAME, Grade.FAIL, said, _ECC)
            grade, said = memory_in_use(gpu, limits)
            if grade is not Grade.PASS:
                yield node, Finding(NAME, grade, f"GPU {index}: {said}", _BUSY)
