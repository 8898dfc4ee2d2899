"""torch.compile, where this machine can compile; knows no model and no ranks."""

from __future__ import annotations

import contextlib

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


def as_it_is() -> contextlib.AbstractContextManager[None]:
    """Inside, compiled models run uncompiled: for a pass or two, compiling costs more than it gains."""
    # Since torch 2.6; before, such a pass is compiled too.
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance else contextlib.nullcontext()
