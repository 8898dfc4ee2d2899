"""Join nodes into the groups that passed tests connect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class Components:
    """A union-find over node numbers."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def join(self, links: Iterable[tuple[int, int]]) -> None:
        for a, b in links:
            self._parent[self._root(a)] = self._root(b)

    def _root(self, node: int) -> int:
        """Return a number that all nodes of one group share."""
        parent = self._parent
        while (above := parent.get(node, node)) != node:
            parent[node] = node = parent.get(above, above)
        return node

    def of(self, nodes: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the groups of these nodes, the largest first."""
        members: dict[int, list[int]] = defaultdict(list)
        for node in nodes:
            members[self._root(node)].append(node)
        return sorted(map(tuple, members.values()), key=lambda group: (-len(group), group))
