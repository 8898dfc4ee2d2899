"""Memory of this job's GPUs that is in use, and programs on them, before the job has begun."""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.tasks import Asked, Findings, Readings
from clusterrun.preflight.untrusted import number, rows, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "gpu-memory"
OF = gpus.NAME
_SYSTEM = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persistenced", "dcgm", "Xorg", "gnome-shell")


def judge(request: Asked, readings: Readings) -> Findings:
    """Fail from ``gpu_memory_fail`` of a GPU on; warn from ``gpu_memory_warn`` on, and of any program."""
    limits = chosen(request.limits)
    for node, reading in readings.items():
        for index, gpu in gpus.given(reading):
            used, size = number(gpu, "used"), number(gpu, "memory")
            strangers = [_stranger(one) for one in rows(gpu, "processes") if not _of_the_system(one)]
            share = used / size if used is not None and size else 0.0
            if not strangers and share < limits["gpu_memory_warn"]:
                continue
            heavy = share >= limits["gpu_memory_fail"]
            limit = limits["gpu_memory_fail" if heavy else "gpu_memory_warn"]
            said = (
                f"GPU {index}: {used or 0:.0f} of {size or 0:.0f} MiB in use ({share:.0%}, limit {limit:.0%})"
            )
            said += " by " + ", ".join(strangers[:4]) if strangers else ", by no process that can be seen"
            yield node, Finding(NAME, Grade.FAIL if heavy else Grade.WARN, said, _remedy(strangers))


def _stranger(one: Mapping[str, Any]) -> str:
    pid, used = number(one, "pid"), number(one, "used")
    parts = (
        text(one, "command").rsplit("/", 1)[-1] or "a process",
        f"pid {pid:.0f}" if pid is not None else "",
        f"of {text(one, 'user')}" if text(one, "user") else "",
        f"{used:.0f} MiB" if used else "",
    )
    return " ".join(part for part in parts if part)


def _of_the_system(one: Mapping[str, Any]) -> bool:
    return text(one, "kind") == "G" or any(name in text(one, "command") for name in _SYSTEM)


def _remedy(strangers: list[str]) -> str:
    if strangers:
        return "a process outlived its job: kill it, or ask who owns it"
    return "its process is gone or in another container: nvidia-smi there, or reset the GPU (nvidia-smi -r)"
