"""Read and write the variables that limit the GPUs of a process. Opens no device."""

from __future__ import annotations

from collections.abc import Mapping

VISIBLE_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
)
# Slurm before 21.08 gives NoDevFiles to a job without GPUs.
_NONE = ("", "-1", "NoDevFiles")


def named(value: str) -> list[str]:
    """Return the devices of a list in its order; none if the list says that there are none."""
    return [word for word in (part.strip() for part in value.split(",")) if word not in _NONE]


def instances(value: str) -> list[str]:
    return [word for word in named(value) if word.startswith("MIG-")]


def instance_of(value: str, ranks: int, local: str) -> dict[str, str]:
    """Return variables that give rank ``local`` of a node its own instance; none if there are too few.

    CUDA opens only the first instance of a list. The rank's device is therefore number 0, as with torchrun
    --virtual-local-rank.
    """
    devices = instances(value)
    if ranks < 2 or len(devices) < ranks:
        return {}
    return {"CUDA_VISIBLE_DEVICES": devices[int(local)], "LOCAL_RANK": "0"}


def with_node_gpus(environment: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Return ``environment`` without lists of fewer than ``gpus`` devices.

    The submitter or Slurm set these lists.
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in VISIBLE_VARIABLES or len(named(value)) >= gpus
    }
