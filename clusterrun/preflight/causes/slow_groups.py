"""Find the smallest groups of a set that are as slow as the whole."""

from __future__ import annotations

from collections.abc import Generator

from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import SMALLEST_GROUP

Nodes = tuple[int, ...]


def slow_groups(
    nodes: Nodes, floor: float
) -> Generator[tuple[Nodes, ...], list[GroupTest], tuple[Nodes, ...]]:
    """Halve a set that is slower than ``floor`` (GB/s), in at most ceil(log2 N) rounds.

    It yields the groups to test at once, disjoint, and is sent their outcomes; a missing one is inconclusive.
    It returns the smallest slow groups, each slow again in a last round. It returns () if no half is slow:
    the set is at fault, and no node.
    """
    smallest: list[Nodes] = []
    parent_of = dict.fromkeys(_halves(nodes), nodes)
    while parent_of:
        is_well = _judge((yield tuple(parent_of)), floor)
        explained = {parent for half, parent in parent_of.items() if is_well.get(half) is not True}
        smallest += [parent for parent in dict.fromkeys(parent_of.values()) if parent not in explained]
        slow = [half for half in parent_of if is_well.get(half) is False]
        smallest += [half for half in slow if len(half) <= SMALLEST_GROUP]
        parent_of = {half: group for group in slow for half in _halves(group)}
    if nodes in smallest or not smallest:
        return ()
    is_well = _judge((yield tuple(smallest)), floor)
    return tuple(group for group in smallest if is_well.get(group) is False)


def _judge(outcomes: list[GroupTest], floor: float) -> dict[Nodes, bool]:
    """Return for each group with an answer whether it passed and was fast enough."""
    return {
        test.nodes: test.is_good and (test.rate is None or test.rate >= floor)
        for test in outcomes
        if test.passed is not None
    }


def _halves(group: Nodes) -> tuple[Nodes, ...]:
    """Return both halves of a group that are large enough for a collective."""
    if len(group) <= SMALLEST_GROUP:
        return ()
    middle = (len(group) + 1) // 2
    return tuple(half for half in (group[:middle], group[middle:]) if len(half) >= SMALLEST_GROUP)
