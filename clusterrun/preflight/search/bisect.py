"""Finds the parts of a set that are slow as the whole is; knows no pair, no process."""

from __future__ import annotations

from collections.abc import Generator

from clusterrun.preflight.search.schedule import GroupTest

SMALLEST = 2
"""A collective of one node says nothing of the network."""

Group = tuple[int, ...]


def slow_parts(
    nodes: Group, floor: float
) -> Generator[tuple[Group, ...], list[GroupTest], tuple[Group, ...]]:
    """Halve what is slower than ``floor`` (GB/s), as all of ``nodes`` were; at most ceil(log2 N) rounds.

    It yields the groups to be tested at once, disjoint, and is sent their outcomes: one that is missing told
    nothing. It returns the smallest slow groups, each tested once more in a last round, so that none is named
    by chance; () where no half is slow: it is the set, and no node, that is at fault.
    """
    smallest: list[Group] = []
    asked = dict.fromkeys(_halves(nodes), nodes)
    while asked:
        known = _judged((yield tuple(asked)), floor)
        unsure = {of for half, of in asked.items() if known.get(half) is not True}
        smallest += [parent for parent in dict.fromkeys(asked.values()) if parent not in unsure]
        slow = [group for group in asked if known.get(group) is False]
        smallest += [group for group in slow if len(group) <= SMALLEST]
        asked = {half: group for group in slow for half in _halves(group)}
    if nodes in smallest or not smallest:
        return ()
    known = _judged((yield tuple(smallest)), floor)
    return tuple(group for group in smallest if known.get(group) is False)


def _judged(outcomes: list[GroupTest], floor: float) -> dict[Group, bool]:
    """By group whether all is well with it, where its test told anything."""
    told = [one for one in outcomes if one.passed is not None]
    return {
        one.nodes: bool(one.passed) and not one.wrong and (one.rate is None or one.rate >= floor)
        for one in told
    }


def _halves(group: Group) -> tuple[Group, ...]:
    """Both halves of a group, of which none is smaller than a collective needs; () if there are none."""
    if len(group) <= SMALLEST:
        return ()
    middle = (len(group) + 1) // 2
    return tuple(half for half in (group[:middle], group[middle:]) if len(half) >= SMALLEST)
