"""GPUs as the variables name them that narrow what a process sees; opens no device."""

from __future__ import annotations

from collections.abc import Mapping

VISIBLE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
_NONE = ("", "-1", "NoDevFiles")
"""Slurm before 21.08 says NoDevFiles to a job without GPUs."""


def named(value: str) -> list[str]:
    """The devices in such a list, in its order; what says that there is none names none."""
    return [word for word in (part.strip() for part in value.split(",")) if word not in _NONE]


def instances(value: str) -> list[str]:
    return [word for word in named(value) if word.startswith("MIG-")]


def instance_of(value: str, ranks: int, local: str) -> dict[str, str]:
    """What gives a node's rank number ``local`` of several its own instance; nothing if there are too few.

    CUDA opens the first of a list of instances and no other: the rank's device is number 0, as with
    torchrun --virtual-local-rank.
    """
    found = instances(value)
    if ranks < 2 or len(found) < ranks:
        return {}
    return {"CUDA_VISIBLE_DEVICES": found[int(local)], "LOCAL_RANK": "0"}


def with_node_gpus(environment: Mapping[str, str], gpus: int) -> dict[str, str]:
    """``environment`` without lists of fewer than ``gpus`` devices: a submitter's own, or Slurm's of none."""
    return {
        name: value
        for name, value in environment.items()
        if name not in VISIBLE_VARIABLES or len(named(value)) >= gpus
    }
