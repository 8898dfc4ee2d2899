"""Joins nodes into groups, and says which groups failed links tell apart; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

Ends = tuple[int, int]
Parts = tuple[tuple[int, ...], ...]

LINKS_APART = 3
"""So many links between two groups must have failed, at two nodes of each: less may be the links' own."""
LEAST_ENDS = 2


class Groups:
    """A union-find: which things were joined, directly or through others."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def join(self, a: int, b: int) -> None:
        self._parent[self.root(a)] = self.root(b)

    def root(self, node: int) -> int:
        """The same number for all of one group."""
        parent = self._parent
        while (above := parent.get(node, node)) != node:
            parent[node] = parent.get(above, above)
            node = above
        return node

    def of(self, nodes: Iterable[int]) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for node in nodes:
            found.setdefault(self.root(node), []).append(node)
        return sorted(map(tuple, found.values()), key=lambda one: (-len(one), one))


def parts(groups: Iterable[tuple[int, ...]], links: Iterable[Ends], least: int = LINKS_APART) -> Parts:
    """The parts of a network by its ``groups`` of two nodes and more, and the ``links`` that failed.

    At least so many must have failed between two groups, or all.
    Groups of which too little is known to call them partitioned count as one part. () where only one is.
    """
    known = [one for one in groups if len(one) >= LEAST_ENDS]
    place = {node: at for at, one in enumerate(known) for node in one}
    failed = links_between(place, links)
    lumps = Groups()
    for node, at in place.items():
        lumps.join(node, known[at][0])
    for a, b in combinations(range(len(known)), 2):
        if not enough_failed(failed.get((a, b), ()), least, known[a], known[b]):
            lumps.join(known[a][0], known[b][0])
    found = tuple(lumps.of(sorted(place)))
    return found if len(found) > 1 else ()


def parts_by_links(nodes: Iterable[int], ways: Iterable[Ends], ill: Collection[frozenset[int]]) -> Parts:
    """The parts of a network in which these ``ways`` were tried, and those between ``ill`` ends failed."""
    groups = Groups()
    for a, b in ways:
        if frozenset((a, b)) not in ill:
            groups.join(a, b)
    return parts(groups.of(nodes), [(min(ends), max(ends)) for ends in ill])


def links_between(place: Mapping[int, int], links: Iterable[Ends]) -> dict[Ends, set[Ends]]:
    """By two groups, the links that failed between them, with the end in the first group first."""
    found: dict[Ends, set[Ends]] = {}
    for a, b in links:
        one, other = place.get(a), place.get(b)
        if one is not None and other is not None and one < other:
            found.setdefault((one, other), set()).add((a, b))
        elif one is not None and other is not None and one > other:
            found.setdefault((other, one), set()).add((b, a))
    return found


def enough_failed(links: Collection[Ends], least: int, one: Collection[int], other: Collection[int]) -> bool:
    ends = (len({a for a, _ in links}), len({b for _, b in links}))
    return len(links) >= min(least, len(one) * len(other)) and min(ends) >= LEAST_ENDS
