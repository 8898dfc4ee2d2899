"""The GPUs as the driver sees them: whether it answers, and how many there are against what was asked.

Other checks judge the same reading: of memory, errors, PCIe and clocks.
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
from clusterrun.preflight.untrusted import number, rows, text, words

NAME = "gpus"
LIMIT = 60.0
"""Without persistence mode the driver is loaded anew by each call: 30 s with 8 GPUs (Azure/aks-gpu#105)."""
LATE = Finding(
    NAME,
    Grade.FAIL,
    "nvidia-smi gave no answer",
    "the driver or a GPU hangs: look for Xid in dmesg, then reboot the node",
)
PERSISTENCE = "turn persistence mode on: systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
LATE_EVERYWHERE = Finding(
    NAME,
    Grade.WARN,
    f"nvidia-smi gave no answer within {LIMIT:g} s on any node",
    PERSISTENCE,
)
Numbered = list[tuple[int, dict[str, object]]]
"""GPUs, each with the driver's number."""
_NO_SUCH_PROGRAM = 127
_AGAIN = "nvidia-smi on the node; if it fails again: reboot the node"
_ILL = "nvidia-smi -q and dmesg | grep -i xid on the node; drain it before that GPU is needed"
_LOAD = "load the driver (modprobe nvidia; dmesg | grep NVRM says why not): a new kernel needs it built anew"
_INSTALL = "install the driver's libraries on the node; in a container: let its runtime bring them (--nv)"
_REMEDIES = (
    ("version mismatch", "the driver was updated under jobs: drain the node and reboot it"),
    ("couldn't communicate", _LOAD),
    ("libnvidia-ml.so", _INSTALL),
    ("No devices were found", "dmesg | grep NVRM on the node says why no GPU started; switch it off and on"),
)
"""What to do about what nvidia-smi says where it lists no GPU, by some of its words."""


def probe(request: RunNeeds) -> object:
    """Everything that one call of nvidia-smi tells, and which of the GPUs are this job's."""
    began = time.monotonic()
    said = answer("nvidia-smi", "-q", "-x", seconds=LIMIT)
    if said.code == _NO_SUCH_PROGRAM:
        return {"found": False}
    reading = {
        "found": True,
        "code": said.code,
        "seconds": round(time.monotonic() - began, 1),
        "given": names(),
        "complaints": nvidia_smi.complaints(f"{said.out}\n{said.err}"),
    }
    try:
        log = nvidia_smi.gpus(said.out)
    except ValueError:
        return {**reading, "said": (said.out or said.err)[-1000:]}
    closed = closed_devices(log["gpus"])
    for index, gpu in enumerate(log["gpus"]):
        gpu["closed"] = index in closed
        for process in gpu["processes"]:
            process["user"] = owner(int(process["pid"] or 0), process["command"])
    return {**reading, **log}


def closed_devices(
    there: list[dict[str, object]], device: str = "/dev/nvidia{}", may: Callable[..., bool] = os.access
) -> set[int]:
    """Which of these GPUs this job may not open (a cgroup keeps their device files from it), by position.

    The kernel is asked, not the driver: to look touches no GPU. Where no device file can be opened at all,
    they lie elsewhere, and nothing is known.
    """
    minors = [number(gpu, "minor") for gpu in there]
    paths = [device.format(int(one)) if one is not None else "" for one in minors]
    opened = {index for index, path in enumerate(paths) if path and may(path, os.R_OK | os.W_OK)}
    return {index for index, path in enumerate(paths) if path} - opened if opened else set()


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Fail where the driver does not answer or fewer GPUs are there than asked; silent without any driver."""
    if not any(_found(reading) for reading in readings.values()):
        return  # not one node has NVIDIA's tools: these are other machines
    for node, reading in readings.items():
        said, remedy = _fault(request, reading)
        if said:
            yield node, Finding(NAME, Grade.FAIL, said, remedy)
        elif _found(reading):
            # Of which job's GPU that is cannot be told: the program numbers it by its place on the bus.
            for said in words(reading, "complaints"):
                yield node, Finding(NAME, Grade.WARN, f"nvidia-smi: {said}", _ILL)


def _fault(request: RunNeeds, reading: object) -> tuple[str, str]:
    """What is wrong with a node's GPUs, and the remedy; empty if nothing is."""
    if not _found(reading):
        return "there is no nvidia-smi here, while other nodes have it", "install the driver on this node"
    there, asked = rows(reading, "gpus"), request.gpus
    if not there:
        said = text(reading, "said") or f"exit code {number(reading, 'code') or 0:.0f}, no GPU listed"
        return f"nvidia-smi: {said}", next((what for part, what in _REMEDIES if part in said), _AGAIN)
    count = sum(_devices(gpu) for gpu in there)
    ours = sum(_devices(gpu) for _, gpu in opened(reading))
    if ours < asked <= count:
        said = f"the job may open {ours} of the {count} GPUs, not {asked}: a cgroup closes the others"
        return said, "ask Slurm for them (--gpus, without --gpus-from node); see GRES in scontrol show job -d"
    if count >= asked:
        return "", ""
    whole = [str(index) for index, gpu in opened(reading) if not _devices(gpu)]
    if whole:
        said = f"GPU {', '.join(whole)} is to be divided (MIG is on) and has no instance: CUDA cannot open it"
        makes = "its administrator makes instances (nvidia-smi mig -cgi PROFILE -C), or turns MIG off"
        return said, f"{makes} (nvidia-smi -i {','.join(whole)} -mig 0)"
    why = "".join(f"; {said}" for said in words(reading, "complaints"))
    remedy = "nvidia-smi -L and dmesg | grep -i xid on the node; reseat or replace the missing GPU"
    return f"the driver sees {count} of {asked} GPUs{why}", remedy


def unanswered(name: str, program: str, limit: float, traces: str, remedy: str) -> tuple[Finding, Finding]:
    """What a program that gives no answer means, on one node and on every one."""
    said = f"{program} gave no answer within {limit:g} s"
    hangs = f"the driver or a GPU hangs: look for {traces} in dmesg, then reboot the node"
    everywhere = Finding(name, Grade.WARN, f"{said} on any node", remedy)
    return Finding(name, Grade.FAIL, said, hangs), everywhere


def memory_in_use(gpu: Mapping[str, object], limits: Mapping[str, float]) -> tuple[Grade, str]:
    """How bad it is that so much of a GPU's memory is in use before the job has begun, and in words."""
    used, whole = number(gpu, "used") or 0.0, number(gpu, "memory") or 0.0
    share = used / whole if whole else 0.0
    heavy = share >= limits["gpu_memory_fail"]
    limit = limits["gpu_memory_fail" if heavy else "gpu_memory_warn"]
    grade = Grade.PASS if share < limits["gpu_memory_warn"] else Grade.FAIL if heavy else Grade.WARN
    return grade, f"{used:.0f} of {whole:.0f} MiB in use ({share:.0%}, limit {limit:.0%})"


def names() -> list[str]:
    return named(variables().get("CUDA_VISIBLE_DEVICES", ""))


def given(reading: object) -> Numbered:
    """The GPUs that this job was given, with their numbers; all, where it cannot be told which."""
    return among(words(reading, "given"), opened(reading))


def suspects(reading: object) -> Numbered:
    """Those of ``given``, and GPUs that do not answer, not even for the UUID that may be one of ours."""
    ours = given(reading)
    some = len(ours) < len(words(reading, "given"))
    silent = [one for one in opened(reading) if some and text(one[1], "gone") and one not in ours]
    return sorted([*ours, *silent], key=lambda one: one[0])


def opened(reading: object) -> Numbered:
    """The GPUs that this job may open, each with the driver's number."""
    return [(index, gpu) for index, gpu in enumerate(rows(reading, "gpus")) if gpu.get("closed") is not True]


def among(names: list[str], there: Numbered) -> Numbered:
    """Those of ``there`` that are named by number, UUID, its beginning, or an instance (MIG) of theirs.

    CUDA counts only what it may open: a number is the place among these.
    """
    chosen = [one for place, one in enumerate(there) if any(_means(name, place, one[1]) for name in names)]
    if not chosen and any(name.startswith("MIG-") for name in names):
        # The driver tells no instance's own UUID here: it is of one of the GPUs that are divided.
        chosen = [(number, gpu) for number, gpu in there if text(gpu, "mig") == "Enabled"]
    return chosen or there


def _means(name: str, number: int, gpu: Mapping[str, object]) -> bool:
    if name.isdecimal():
        return int(name) == number
    whole = name.removeprefix("MIG-").partition("/")[0]  # MIG-GPU-<UUID>/<instance>/<instance>, before 470
    return whole.startswith("GPU-") and text(gpu, "uuid").startswith(whole)


def _devices(gpu: Mapping[str, object]) -> int:
    """How many devices a program can open: the instances of a GPU that is divided (MIG)."""
    return int(number(gpu, "instances") or 0) if text(gpu, "mig") == "Enabled" else 1


def _found(reading: object) -> bool:
    return isinstance(reading, dict) and reading.get("found") is True
