"""Driver, its CUDA and the kind of GPU, equal on all nodes; names the node that differs."""

from __future__ import annotations

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.checks import gpus
from clusterrun.preflight.majority import unlike
from clusterrun.preflight.untrusted import rows, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked, Findings, Readings

NAME = "driver"
OF = gpus.NAME


def judge(request: Asked, readings: Readings) -> Findings:
    """Warn of a node with another driver, or with other GPUs than most have."""
    drivers = {node: text(reading, "driver") for node, reading in readings.items()}
    kinds = {node: _kinds(reading) for node, reading in readings.items()}
    same = "install the same driver on every node, or leave the node out"
    yield from unlike(NAME, "the NVIDIA driver", _known(drivers), Grade.WARN, same)
    likes = "ask for one kind of node (--constraint or --partition): every step waits for the slowest GPU"
    yield from unlike(NAME, "the kind of GPU", _known(kinds), Grade.WARN, likes)
    checked = {node: _kinds(reading, "ecc") for node, reading in readings.items()}
    alike = "nvidia-smi -e 1 (or 0) on that node, then reboot it: without ECC wrong bits go unnoticed"
    yield from unlike(NAME, "ECC of the GPUs' memory", _known(checked), Grade.WARN, alike)


def _kinds(reading: Any, field: str = "name") -> str:
    return ", ".join(sorted({text(gpu, field) for gpu in rows(reading, "gpus")} - {""}))


def _known(values: Mapping[str, str]) -> dict[str, str]:
    return {node: value for node, value in values.items() if value}
