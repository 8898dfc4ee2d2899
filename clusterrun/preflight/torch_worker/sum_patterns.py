"""Make integers whose sums are exact in any order and reveal each wrong bit, position or rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

KINDS = ("int64", "float32")
_MOST_LOOKED_AT = 64


def weight(rank: int, kind: str) -> int:
    """Return the factor that identifies a rank. It is small for floats: 50,000 ranks stay exact."""
    return rank + 1 if kind == "int64" else rank % 16 + 1


def contribution(rank: int, count: int, kind: str) -> torch.Tensor:
    """Return the summand of ``rank``: element j is weight × u(j) + v(j). All ranks share u and v."""
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


def difference(sums: torch.Tensor, world: int, kind: str) -> str:
    """Return how a sum is wrong and which single rank explains it, or '' if it is correct."""
    expected = total(world, sums.numel(), kind)
    wrong = (sums != expected).nonzero().flatten()
    if not len(wrong):
        return ""
    first = int(wrong[0])
    example = f"{kind} sum: element {first} is {sums[first].item()} instead of {expected[first].item()}"
    extent = f" ({len(wrong)} of {sums.numel()} elements differ)" if len(wrong) > 1 else ""
    return example + extent + _explained(sums, expected, wrong, world, kind)


def _explained(sums: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, world: int, kind: str) -> str:
    steep, flat = _terms(sums.numel(), kind)
    sample = wrong[:_MOST_LOOKED_AT]
    off = (sums[sample] - expected[sample]).to(torch.int64)
    for sign, word in ((-1, "is missing"), (1, "is there twice")):
        weights = torch.div(sign * off - flat[sample], steep[sample], rounding_mode="floor")
        remainder = torch.remainder(sign * off - flat[sample], steep[sample])
        same = bool((remainder == 0).all()) and bool((weights == weights[0]).all())
        ranks = [rank for rank in range(world) if weight(rank, kind) == int(weights[0])]
        if same and len(ranks) == 1:
            return f": what rank {ranks[0]} gave {word}"
    return ""


def changed(contributions: Sequence[torch.Tensor], kind: str) -> dict[int, int]:
    """Return the ranks whose gathered contribution is wrong, each with its first wrong element."""
    wrong = {rank: wrong_at(values, rank, kind) for rank, values in enumerate(contributions)}
    return {rank: at for rank, at in wrong.items() if at is not None}


def wrong_at(values: torch.Tensor, rank: int, kind: str) -> int | None:
    """Return the first element that differs from the contribution of ``rank``, or None."""
    wrong = (values != contribution(rank, values.numel(), kind)).nonzero().flatten()
    return int(wrong[0]) if len(wrong) else None
