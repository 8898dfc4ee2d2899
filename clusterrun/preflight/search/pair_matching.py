"""Makes up one round of disjoint pairs, the most needed first; knows the answers so far, gives no verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterrun.preflight.search.blame import Blame
from clusterrun.preflight.search.schedule import Pair, pair


class MatchingRound:
    """The pairs of one round as it grows; ``free`` are the nodes that have no partner in it yet, in order."""

    def __init__(self, free: Iterable[int], tries: dict[Pair, int], confirm: int, most: int) -> None:
        self.free = dict.fromkeys(free)
        self.pairs: list[Pair] = []
        self._tries = tries
        self._confirm = confirm
        self._most = most

    def put(self, link: Pair) -> bool:
        """Take both nodes of ``link``, where both are free."""
        if link.a not in self.free or link.b not in self.free:
            return False
        del self.free[link.a], self.free[link.b]
        self.pairs.append(link)
        return True

    def repeat(self, links: Iterable[Pair]) -> None:
        """Take each of these links whose ends are free; one that keeps telling nothing is given up."""
        for link in links:
            if self._tries.get(link, 0) < self._most:
                self.put(link)

    def assign(self, nodes: Iterable[int], partners: Sequence[int]) -> None:
        """Give each of ``nodes`` a partner it has not met; one it has met only where it has met them all."""
        waiting = [node for node in nodes if node in self.free]
        pool = [node for node in partners if node in self.free]
        given: dict[int, int] = {}
        left = []
        for node in waiting:
            at = next((at for at, one in enumerate(pool) if self._new(node, one)), None)
            if at is not None:
                given[node] = pool.pop(at)
            elif not self._exchange(node, pool, given):
                left.append(node)
        for node in left:
            self._again(node, pool, partners, given)
        for node, partner in given.items():
            self.put(pair(node, partner))

    def _exchange(self, node: int, pool: list[int], given: dict[int, int]) -> bool:
        """Take over the partner of another that can go on with one of the pool."""
        for spare in pool:
            for other, partner in given.items():
                if self._new(node, partner) and self._new(other, spare):
                    given[node], given[other] = partner, spare
                    pool.remove(spare)
                    return True
        return False

    def _again(self, node: int, pool: list[int], partners: Sequence[int], given: dict[int, int]) -> None:
        if any(self._new(node, one) for one in partners):
            return  # it waits for one that is busy
        known = [one for one in pool if one != node and self._tried(node, one) < self._confirm]
        if known:
            given[node] = min(known, key=lambda one: self._tried(node, one))
            pool.remove(given[node])

    def among(self, nodes: Iterable[int], *, again: bool) -> None:
        """Pair these with each other where they have not met; ``again``: else the least tried, in turn."""
        waiting = [node for node in nodes if node in self.free]
        before = len(self.pairs)
        self._introduce(waiting)
        if again and len(self.pairs) == before:
            here = set(waiting)
            for link in sorted(self._tries, key=self._tries.__getitem__):
                if self._tries[link] < self._confirm and here.issuperset(link):
                    self.put(link)

    def _introduce(self, waiting: list[int]) -> None:
        """Pair those that have not met; each with one far from it first."""
        for node in waiting:
            waiting = [one for one in waiting if one in self.free]
            half = len(waiting) // 2
            others = (*waiting[half:], *waiting[:half])
            partner = next((one for one in others if one != node and self._new(node, one)), None)
            if node in self.free and partner is not None:
                self.put(pair(node, partner))

    def _tried(self, a: int, b: int) -> int:
        return self._tries.get(pair(a, b), 0)

    def _new(self, a: int, b: int) -> bool:
        return a != b and pair(a, b) not in self._tries


def least_known_first(ledger: Blame, nodes: Iterable[int]) -> list[int]:
    """Those of whom least is known come first: they may be healthy, and partners for the others."""
    return sorted(nodes, key=lambda node: len(ledger.counted(node)))
