"""The one majority vote: which value is the usual one, and which ranks differ from it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterrun.model.frozen import Any


class RankVote:
    """The ranks by their value.

    sides: (value, ranks), the value of most ranks first. Equal sides are ordered by their lowest rank
    odd: the ranks that differ from the largest side; () unless it is larger than every other side
    """

    def __init__(self, value_by_rank: Mapping[int, Any]) -> None:
        ranks_by_value: dict[Any, list[int]] = {}
        for rank in sorted(value_by_rank):
            ranks_by_value.setdefault(value_by_rank[rank], []).append(rank)
        sides = sorted(ranks_by_value.items(), key=lambda side: (-len(side[1]), side[1]))
        self.sides = [(value, tuple(ranks)) for value, ranks in sides]
        self.odd: tuple[int, ...] = ()
        if len(self.sides) > 1 and len(self.sides[0][1]) > len(self.sides[1][1]):
            self.odd = tuple(sorted(rank for _, ranks in self.sides[1:] for rank in ranks))

    @property
    def is_unanimous(self) -> bool:
        return len(self.sides) < 2

    @property
    def suspects(self) -> tuple[int, ...]:
        """Return the odd ranks, or all of them if no side is the largest."""
        if self.odd or self.is_unanimous:
            return self.odd
        return tuple(sorted(rank for _, ranks in self.sides for rank in ranks))

    def lone(self, others: int = 2) -> int:
        """Return the only rank that differs from at least ``others`` agreeing ranks; -1 if there is none."""
        if len(self.sides) != 2 or len(self.odd) != 1 or len(self.sides[0][1]) < others:
            return -1
        return self.odd[0]


def one_only(ranks: Iterable[int]) -> int:
    """Return the rank that alone fulfils a condition; -1 if several do, or none."""
    fulfil = list(ranks)
    return fulfil[0] if len(fulfil) == 1 else -1
