"""Use torch.compile if this machine can compile."""

from __future__ import annotations

import contextlib

import torch
from torch import nn


def compiled(model: nn.Module, device: torch.device) -> str:
    """Let the next step compile the model. Return why that is impossible, '' if it is possible."""
    reason = why_not(device)
    if not reason:
        model.compile()
    return reason


def why_not(device: torch.device) -> str:
    """Compile one line. Return why this machine cannot, '' if it can."""
    try:
        torch.compile(lambda number: number * 2 + 1)(torch.ones(8, device=device))
    except Exception as error:  # noqa: BLE001 - a missing compiler raises many kinds of errors
        kind = type(error).__name__
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), kind)
        return f"torch.compile does not work here ({kind}: {reason}): training continues without it"
    return ""


def as_it_is() -> contextlib.AbstractContextManager[None]:
    """Run compiled models uncompiled in this context: compiling costs more than one pass gains."""
    # Exists since torch 2.6. Older versions compile such a pass too.
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance else contextlib.nullcontext()
