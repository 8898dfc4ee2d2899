"""Finds the smallest part of a set that fails, or is slow, as the whole does; knows no pair, no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    Begin it after the whole set has failed, or was slower than ``floor`` (GB/s). The smallest groups
    that reproduce it are tested once more in a last round, so that none is named by chance.
    """

    def __init__(self, nodes: Sequence[int], floor: float = 0.0) -> None:
        self._floor = floor
        self._whole = tuple(nodes)
        self._asked = _halves(self._whole)
        self._parents = dict.fromkeys(self._asked, self._whole)
        self._smallest: list[tuple[int, ...]] = []
        self._named: list[tuple[int, ...]] = []
        self._outcomes: list[GroupOutcome] = []
        self._rounds = 0
        self._repeating = False
        self._set_only = len(self._whole) <= SMALLEST

    def next_round(self) -> tuple[tuple[int, ...], ...]:
        """The groups to be tested at once, disjoint; () when it is finished."""
        return self._asked

    def take(self, outcomes: Sequence[GroupOutcome]) -> None:
        """What became of the groups asked for last; one that is missing told nothing."""
        if not self._asked:
            return
        self._rounds += 1
        known = {one.nodes: one for one in outcomes if one.nodes in self._asked}
        self._outcomes += known.values()
        if self._repeating:
            self._named = [group for group in self._asked if self._reproduces(known.get(group))]
            self._asked = ()
        else:
            self._descend(known)

    def result(self) -> BisectResult:
        """What is known now; ask any time."""
        return BisectResult(tuple(self._named), self._set_only, self._rounds, tuple(self._outcomes))

    def _descend(self, known: Mapping[tuple[int, ...], GroupOutcome]) -> None:
        """Go into the halves that reproduce it; a group of which no half does is a smallest one."""
        again = [group for group in self._asked if self._reproduces(known.get(group))]
        for parent in dict.fromkeys(self._parents[group] for group in self._asked):
            halves = [group for group in self._asked if self._parents[group] == parent]
            if all(self._well(known.get(half)) for half in halves):
                self._smallest.append(parent)
        self._smallest += [group for group in again if len(group) <= SMALLEST]
        deeper = [(group, half) for group in again for half in _halves(group)]
        self._parents = {half: group for group, half in deeper}
        self._asked = tuple(self._parents)
        if not self._asked:
            self._finish()

    def _finish(self) -> None:
        self._set_only = self._whole in self._smallest
        self._asked = () if self._set_only else tuple(self._smallest)
        self._repeating = True

    def _reproduces(self, outcome: GroupOutcome | None) -> bool:
        if outcome is None or outcome.passed is None:
            return False
        slow = outcome.rate is not None and outcome.rate < self._floor
        return not outcome.passed or outcome.wrong or slow

    def _well(self, outcome: GroupOutcome | None) -> bool:
        """Whether it told something, and that all is well: one that told nothing clears nobody."""
        return outcome is not None and outcome.passed is not None and not self._reproduces(outcome)


def _halves(group: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Both halves of a group, of which none is smaller than a collective needs; () if there are none."""
    if len(group) <= SMALLEST:
        return ()
    middle = (len(group) + 1) // 2
    return tuple(half for half in (group[:middle], group[middle:]) if len(half) >= SMALLEST)
