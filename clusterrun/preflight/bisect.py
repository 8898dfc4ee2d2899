"""Finds the smallest part of a set that fails, or is slow, as the whole does; knows no pair, no process."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.frozen import frozen

SMALLEST = 2
"""A collective of one node says nothing of the network."""


@frozen
class GroupOutcome:
    """How a group went. ``passed`` is None where a member was lost; ``rate`` is bus bandwidth in GB/s."""

    nodes: tuple[int, ...]
    passed: bool | None
    rate: float | None = None
    wrong: bool = False


@frozen
class BisectResult:
    """``subsets``: the smallest groups that reproduce what is wrong, each twice, members in the given order.

    ``set_only``: no half reproduced it: it is the set, and no node, that is at fault.
    Neither: it could not be found out (a group's members were lost, or what was wrong went away).
    """

    subsets: tuple[tuple[int, ...], ...]
    set_only: bool
    rounds: int
    outcomes: tuple[GroupOutcome, ...]


class Bisect:
    """Halves what reproduces, all halves of a round at the same time; at most ceil(log2 N) rounds.

    Begin it after the whole set has failed, or was slower than ``floor`` (GB/s).
    """

    def __init__(self, nodes: Sequence[int], floor: float = 0.0) -> None:
        self._floor = floor
        self._open: list[tuple[int, ...]] = [tuple(nodes)]

    def next_round(self) -> tuple[tuple[int, ...], ...]:
        """The groups to be tested at once, disjoint; () when it is finished."""
        raise NotImplementedError

    def take(self, outcomes: Sequence[GroupOutcome]) -> None:
        """What became of the groups asked for last."""
        raise NotImplementedError

    def result(self) -> BisectResult:
        """What is known now; ask any time."""
        raise NotImplementedError
