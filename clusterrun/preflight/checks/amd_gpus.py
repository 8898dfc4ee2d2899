"""Check AMD GPUs with amd-smi: their number, memory in use and memory errors.

ROCm releases without amd-smi have rocm-smi, which reports no errors.
"""

from __future__ import annotations

import os

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.visible_gpus import named
from clusterrun.preflight.checks.gpus import memory_in_use, unanswered
from clusterrun.preflight.probes.process_context import variables
from clusterrun.preflight.probes.run_program import answer, document
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import entries, number, rows, strings, text

NAME = "amd-gpus"
LIMIT = 15.0
_SLOW = "time amd-smi metric, or time rocm-smi, on a node: its Python may lie on a slow file system"
LATE, LATE_EVERYWHERE = unanswered(NAME, "amd-smi (rocm-smi, where there is none)", LIMIT, "amdgpu", _SLOW)
DEVICE = "/dev/kfd"
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_BUSY = (
    "a process outlived its job: amd-smi process, or rocm-smi --showpids, on the node; "
    "kill it, or ask who owns it"
)
_MISSING = 127
_MIB = 1 << 20
# The total counts the errors of xGMI links too: amd-smi calls their block XGMI_WAFL.
_ECC = (
    "amd-smi metric --ecc-blocks names the part: UMC is memory, XGMI_WAFL a link between GPUs; "
    "drain the node and reset the GPU (amd-smi reset --gpureset) or reboot; if it comes again, replace it"
)


def probe(request: RunNeeds) -> object:
    """Return what amd-smi or rocm-smi reports of each GPU. Run neither without the AMD compute driver."""
    if not os.path.exists(DEVICE):
        return {"has_driver": False}
    program, read = "amd-smi", of_text
    reply = answer(program, "metric", "--mem-usage", "--ecc", "--json", seconds=LIMIT)
    if reply.code == _MISSING:
        program, read = "rocm-smi", of_cards
        reply = answer(program, "--showmeminfo", "vram", "--json", seconds=LIMIT)
    job_devices = next((devices for name in _VISIBLE if (devices := named(variables().get(name, "")))), [])
    return {
        "has_driver": True,
        "visible": job_devices,
        "program": program,
        "gpus": read(reply.out),
    }


def of_text(out: str) -> list[dict[str, float]]:
    """Return one row per GPU of a list (ROCm 6) or of ``gpu_data`` (ROCm 7), without unreported values."""
    parsed = document(out, "[{")
    gpu_rows = rows(parsed if isinstance(parsed, list) else rows(parsed, "gpu_data"))
    paths = {
        "memory": ("mem_usage", "total_vram"),
        "used": ("mem_usage", "used_vram"),
        "uncorrected": ("ecc", "total_uncorrectable_count"),
    }
    readings = []
    for gpu_row in gpu_rows:
        reading = {}
        for name, path in paths.items():
            plain = number(gpu_row, *path)
            value = number(gpu_row, *path, "value") if plain is None else plain
            if value is not None:
                reading[name] = value
        readings.append(reading)
    return readings


def of_cards(out: str) -> list[dict[str, float]]:
    """Return one row per card of rocm-smi, in the order of card numbers. It reports bytes as text."""
    parsed = document(out)
    names = [name for name in entries(parsed) if name[:4] == "card" and name[4:].isdecimal()]
    columns = {"memory": "VRAM Total Memory (B)", "used": "VRAM Total Used Memory (B)"}
    readings = []
    for card in sorted(names, key=lambda name: int(name[4:])):
        texts = {name: str(entries(parsed, card).get(column)) for name, column in columns.items()}
        readings.append({name: int(value) / _MIB for name, value in texts.items() if value.isdecimal()})
    return readings


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail for missing GPUs and uncorrected errors. Judge memory in use. Yield nothing without the driver."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        gpus = rows(reading, "gpus")
        if not isinstance(reading, dict) or reading.get("has_driver") is not True or not gpus:
            continue  # without amd-smi torch alone counts the GPUs
        if len(gpus) < request.gpus:
            program = "rocm-smi" if text(reading, "program") == "rocm-smi" else "amd-smi"
            message = f"{program} sees {len(gpus)} of {request.gpus} GPUs"
            remedy = f"{program} and dmesg | grep amdgpu on the node; reseat or replace the missing GPU"
            yield node, Finding(NAME, Grade.FAIL, message, remedy)
        job_devices = strings(reading, "visible")
        job_numbers = [name for name in job_devices if name.isdecimal()]
        for index, gpu in enumerate(gpus):
            if job_devices and len(job_numbers) == len(job_devices) and str(index) not in job_numbers:
                continue
            errors = number(gpu, "uncorrected") or 0.0
            if errors > 0:
                message = f"GPU {index}: {errors:.0f} uncorrected errors since the driver's start (limit 0)"
                yield node, Finding(NAME, Grade.FAIL, message, _ECC)
            grade, message = memory_in_use(gpu, limits)
            if grade is not Grade.PASS:
                yield node, Finding(NAME, grade, f"GPU {index}: {message}", _BUSY)
