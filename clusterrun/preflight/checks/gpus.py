"""Check that the NVIDIA driver responds and reports as many GPUs as requested.

Other checks judge the same reading: memory, errors, PCIe and clocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.visible_gpus import named
from clusterrun.preflight.probes import nvidia_smi
from clusterrun.preflight.probes.process_context import owner, variables
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number, rows, strings, text

NAME = "gpus"
# Each call loads the driver again without persistence mode: 30 s with 8 GPUs (Azure/aks-gpu#105).
LIMIT = 60.0
PERSISTENCE = "turn persistence mode on: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
# GPUs, each with the driver's number.
Numbered = list[tuple[int, dict[str, object]]]
_NO_SUCH_PROGRAM = 127
_AGAIN = "nvidia-smi on the node; if it fails again: reboot the node"
_ILL = "nvidia-smi -q and dmesg | grep -i xid on the node; drain it before that GPU is needed"
_LOAD = "load the driver (modprobe nvidia; dmesg | grep NVRM says why not): a new kernel needs it built anew"
_INSTALL = "install the driver's libraries on the node; in a container: let its runtime bring them (--nv)"
# Remedies by a part of the message of nvidia-smi when it lists no GPU.
_REMEDIES = (
    ("version mismatch", "the driver was updated under jobs: drain the node and reboot it"),
    ("couldn't communicate", _LOAD),
    ("libnvidia-ml.so", _INSTALL),
    ("NVML: Unknown Error", "in a container: start it again, it lost its devices; else reboot the node"),
    ("No devices were found", "dmesg | grep NVRM on the node says why no GPU started; switch it off and on"),
)


def unanswered(name: str, program: str, limit: float, traces: str, remedy: str) -> tuple[Finding, Finding]:
    """Return the findings for a program that does not respond: on one node, and on every node."""
    message = f"{program} gave no answer within {limit:g} s"
    hangs = f"the driver or a GPU hangs: look for {traces} in dmesg, then reboot the node"
    everywhere = Finding(name, Grade.WARN, f"{message} on any node", remedy)
    return Finding(name, Grade.FAIL, message, hangs), everywhere


LATE, LATE_EVERYWHERE = unanswered(NAME, "nvidia-smi", LIMIT, "Xid", PERSISTENCE)


def probe(request: RunNeeds) -> object:
    """Return everything that one call of nvidia-smi reports, and which GPUs belong to this job."""
    began = time.monotonic()
    # The limit of the probe expires first and makes the reading late, which other checks of the driver read.
    reply = answer("nvidia-smi", "-q", "-x", seconds=2 * LIMIT)
    if reply.code == _NO_SUCH_PROGRAM:
        return {"has_driver": False}
    reading = {
        "has_driver": True,
        "code": reply.code,
        "seconds": round(time.monotonic() - began, 1),
        "visible": names(),
        "complaints": nvidia_smi.complaints(f"{reply.out}\n{reply.err}"),
    }
    try:
        log = nvidia_smi.gpus(reply.out)
    except ValueError:
        return {**reading, "message": (reply.out or reply.err)[-1000:]}
    closed = closed_devices(log["gpus"])
    for index, gpu in enumerate(log["gpus"]):
        gpu["closed"] = index in closed
        for process in gpu["processes"]:
            process["user"] = owner(int(process["pid"] or 0), process["command"])
    return {**reading, **log}


def closed_devices(
    all_gpus: list[dict[str, object]], device: str = "/dev/nvidia{}", may: Callable[..., bool] = os.access
) -> set[int]:
    """Return the positions of the GPUs that this job may not open because a cgroup denies their device files.

    The check asks the kernel and touches no GPU. Return an empty set if no device file can be opened: the
    files are elsewhere.
    """
    minors = [number(gpu, "minor") for gpu in all_gpus]
    paths = [device.format(int(minor)) if minor is not None else "" for minor in minors]
    opened = {index for index, path in enumerate(paths) if path and may(path, os.R_OK | os.W_OK)}
    return {index for index, path in enumerate(paths) if path} - opened if opened else set()


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail if the driver does not respond or reports too few GPUs. Skip runs without NVIDIA nodes."""
    if not any(_has_nvidia_smi(reading) for reading in readings.values()):
        return  # Machines without NVIDIA GPUs.
    for node, reading in readings.items():
        message, remedy = _fault(request, reading)
        if message:
            yield node, Finding(NAME, Grade.FAIL, message, remedy)
        elif _has_nvidia_smi(reading):
            # nvidia-smi names this GPU by its bus address, which does not tell whose job it belongs to.
            for message in strings(reading, "complaints"):
                yield node, Finding(NAME, Grade.WARN, f"nvidia-smi: {message}", _ILL)


def _fault(request: RunNeeds, reading: object) -> tuple[str, str]:
    """Return the problem of a node's GPUs and its remedy, or empty strings."""
    if not _has_nvidia_smi(reading):
        return "there is no nvidia-smi here, while other nodes have it", "install the driver on this node"
    all_gpus, required = rows(reading, "gpus"), request.gpus
    if not all_gpus:
        message = text(reading, "message") or f"exit code {number(reading, 'code') or 0:.0f}, no GPU listed"
        return f"nvidia-smi: {message}", next(
            (remedy for part, remedy in _REMEDIES if part in message), _AGAIN
        )
    count = sum(_devices(gpu) for gpu in all_gpus)
    opened_count = sum(_devices(gpu) for _, gpu in opened(reading))
    if opened_count < required <= count:
        message = (
            f"the job may open {opened_count} of the {count} GPUs, not {required}: a cgroup closes the others"
        )
        return (
            message,
            "ask Slurm for them (--gpus, without --gpus-from node); see GRES in scontrol show job -d",
        )
    if count >= required:
        return "", ""
    without_devices = [str(index) for index, gpu in opened(reading) if not _devices(gpu)]
    if without_devices:
        message = f"GPU {', '.join(without_devices)} is in MIG mode and has no instance: CUDA cannot open it"
        action = "let an administrator create instances (nvidia-smi mig -cgi PROFILE -C), or turn MIG off"
        return message, f"{action} (nvidia-smi -i {','.join(without_devices)} -mig 0)"
    why = "".join(f"; {message}" for message in strings(reading, "complaints"))
    remedy = "nvidia-smi -L and dmesg | grep -i xid on the node; reseat or replace the missing GPU"
    return f"the driver sees {count} of {required} GPUs{why}", remedy


def memory_in_use(gpu: Mapping[str, object], limits: Mapping[str, float]) -> tuple[Grade, str]:
    """Return the grade and the description of the GPU memory in use before the job begins."""
    used, total = number(gpu, "used") or 0.0, number(gpu, "memory") or 0.0
    if not total:
        return Grade.PASS, "memory in use"  # The driver of a GPU without memory of its own reports no sizes.
    share = used / total
    heavy = share >= limits["gpu_memory_fail"]
    limit = limits["gpu_memory_fail" if heavy else "gpu_memory_warn"]
    message = f"{used:.0f} of {total:.0f} MiB in use ({share:.0%}"
    if share < limits["gpu_memory_warn"]:
        return Grade.PASS, f"{message})"
    return (Grade.FAIL if heavy else Grade.WARN), f"{message}, limit {limit:.0%})"


def names() -> list[str]:
    return named(variables().get("CUDA_VISIBLE_DEVICES", ""))


def job_gpus(reading: object) -> Numbered:
    """Return the GPUs of this job with their numbers, or all GPUs if the job's are unknown."""
    return among(strings(reading, "visible"), opened(reading))


def suspects(reading: object) -> Numbered:
    """Return ``job_gpus`` and the GPUs that do not respond, if the job may own one of those."""
    own_gpus = job_gpus(reading)
    is_partial = len(own_gpus) < len(strings(reading, "visible"))
    silent: Numbered = []
    for index, gpu in opened(reading):
        if is_partial and text(gpu, "gone") and (index, gpu) not in own_gpus:
            silent.append((index, gpu))
    return sorted([*own_gpus, *silent], key=lambda numbered: numbered[0])


def opened(reading: object) -> Numbered:
    """Return the GPUs that this job may open, each with the driver's number."""
    return [(index, gpu) for index, gpu in enumerate(rows(reading, "gpus")) if gpu.get("closed") is not True]


def among(names: list[str], numbered_gpus: Numbered) -> Numbered:
    """Return the GPUs that ``names`` selects by number, UUID, prefix of a UUID, or MIG instance.

    A number is the position among the GPUs that CUDA may open. Return all GPUs if none is selected.
    """
    chosen = [
        numbered
        for index, numbered in enumerate(numbered_gpus)
        if any(_means(name, index, numbered[1]) for name in names)
    ]
    if not chosen and any(name.startswith("MIG-") for name in names):
        # nvidia-smi does not report the UUID of an instance here. It belongs to a GPU in MIG mode.
        chosen = [(number, gpu) for number, gpu in numbered_gpus if text(gpu, "mig") == "Enabled"]
    return chosen or numbered_gpus


def _means(name: str, number: int, gpu: Mapping[str, object]) -> bool:
    if name.isdecimal():
        return int(name) == number
    gpu_name = name.removeprefix("MIG-").partition("/")[0]  # MIG-GPU-<UUID>/<instance>/<instance>, before 470
    return gpu_name.startswith("GPU-") and text(gpu, "uuid").startswith(gpu_name)


def _devices(gpu: Mapping[str, object]) -> int:
    """Return the number of devices that a program can open: the instances of a GPU in MIG mode, else 1."""
    return int(number(gpu, "instances") or 0) if text(gpu, "mig") == "Enabled" else 1


def _has_nvidia_smi(reading: object) -> bool:
    return isinstance(reading, dict) and reading.get("has_driver") is True
