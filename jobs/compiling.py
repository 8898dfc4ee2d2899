"""torch.compile, where this machine can compile; knows no model and no ranks."""

from __future__ import annotations

import torch
from torch import nn


def compiled(model: nn.Module, device: torch.device) -> str:
    """Have the model compiled at its next step; the result says why not, and is empty when it will be."""
    reason = why_not(device)
    if not reason:
        model.compile()
    return reason


def why_not(device: torch.device) -> str:
    """The reason this machine cannot compile, found by compiling one line; empty when it can."""
    try:
        torch.compile(lambda number: number * 2 + 1)(torch.ones(8, device=device))
    except Exception as error:  # noqa: BLE001 - a missing compiler shows in many ways, and none may stop a training
        kind = type(error).__name__
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), kind)
        return f"torch.compile does not work here ({kind}: {words}): training goes on without it"
    return ""
