"""Integers whose sums are exact in any order, so that each wrong bit, place or rank shows; knows no group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

KINDS = ("int64", "float32")
_MOST_LOOKED_AT = 64


def weight(rank: int, kind: str) -> int:
    """What tells a rank's contribution from the others'; in floats small, so that 50,000 ranks stay exact."""
    return rank + 1 if kind == "int64" else rank % 16 + 1


def contribution(rank: int, count: int, kind: str) -> torch.Tensor:
    """What ``rank`` puts into the sum: element j is weight × u(j) + v(j), u and v fixed for all ranks."""
    steep, flat = _terms(count, kind)
    return (weight(rank, kind) * steep + flat).to(getattr(torch, kind))


def total(world: int, count: int, kind: str) -> torch.Tensor:
    steep, flat = _terms(count, kind)
    weights = sum(weight(rank, kind) for rank in range(world))
    return (weights * steep + world * flat).to(getattr(torch, kind))


def _terms(count: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    place = torch.arange(count, dtype=torch.int64)
    steepest = 1009 if kind == "int64" else 13
    return (place * 2654435761 // 128) % steepest + 1, place % 7


def difference(found: torch.Tensor, world: int, kind: str) -> str:
    """How a sum differs from what it must be, and which one rank explains that; empty if all is right."""
    wanted = total(world, found.numel(), kind)
    wrong = (found != wanted).nonzero().flatten()
    if not len(wrong):
        return ""
    first = int(wrong[0])
    shown = f"{kind} sum: element {first} is {found[first].item()} instead of {wanted[first].item()}"
    extent = f" ({len(wrong)} of {found.numel()} elements differ)" if len(wrong) > 1 else ""
    return shown + extent + _explained(found, wanted, wrong, world, kind)


def _explained(found: torch.Tensor, wanted: torch.Tensor, wrong: torch.Tensor, world: int, kind: str) -> str:
    steep, flat = _terms(found.numel(), kind)
    seen = wrong[:_MOST_LOOKED_AT]
    off = (found[seen] - wanted[seen]).to(torch.int64)
    for sign, word in ((-1, "is missing"), (1, "is there twice")):
        weights = torch.div(sign * off - flat[seen], steep[seen], rounding_mode="floor")
        rest = torch.remainder(sign * off - flat[seen], steep[seen])
        same = bool((rest == 0).all()) and bool((weights == weights[0]).all())
        ranks = [rank for rank in range(world) if weight(rank, kind) == int(weights[0])]
        if same and len(ranks) == 1:
            return f": what rank {ranks[0]} gave {word}"
    return ""


def changed(given: Sequence[torch.Tensor], kind: str) -> dict[int, int]:
    """Of gathered contributions, in rank order: the ranks whose is not what it must be, and where."""
    wrong = {rank: wrong_at(one, rank, kind) for rank, one in enumerate(given)}
    return {rank: at for rank, at in wrong.items() if at is not None}


def wrong_at(given: torch.Tensor, rank: int, kind: str) -> int | None:
    """The first element in which ``given`` is not the contribution of ``rank``."""
    wrong = (given != contribution(rank, given.numel(), kind)).nonzero().flatten()
    return int(wrong[0]) if len(wrong) else None
