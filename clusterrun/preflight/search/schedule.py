"""Which pairs are tested in which round: those of a ring, all, or what is most needed; no verdict."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence

from clusterrun.model.frozen import frozen

Pair = namedtuple("Pair", ["a", "b"])
"""Two nodes that are tested together, and the link between them; given with the smaller number first.

A tuple, for there are 780,000 of them in a set of 1,250 nodes.
"""


def pair(a: int, b: int) -> Pair:
    """The link between two nodes, with the smaller number first; a node is no partner of itself."""
    if a == b:
        raise ValueError(f"node {a} cannot be paired with itself")
    return Pair(min(a, b), max(a, b))


@frozen
class GroupTest:
    """How the test of a group went. ``passed`` is None if inconclusive: a member was lost.

    ``rate`` is bus bandwidth in GB/s, ``wrong`` how a sum differed, ``why`` another reason to fail.
    ``starved``: its ranks waited for processors, so that its network is at least so fast. ``ways`` of a pair
    are the rates of what each node sent; ``transports`` the networks that NCCL chose.
    """

    nodes: tuple[int, ...]
    passed: bool | None
    rate: float | None = None
    wrong: str = ""
    starved: bool = False
    kind: str = ""
    seconds: float = 0.0
    ways: tuple[tuple[int, float], ...] = ()
    why: str = ""
    transports: tuple[str, ...] = ()


def ring_rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """The links of the ring, each once, in the fewest rounds: 2 if it is even, 3 if odd, 1 for two nodes."""
    count = len(nodes)
    if count < 2:
        return ()
    links = [pair(nodes[at], nodes[(at + 1) % count]) for at in range(count if count > 2 else 1)]
    last = links.pop() if count % 2 and count > 2 else None
    rounds = [tuple(links[0::2]), tuple(links[1::2]), (last,) if last else ()]
    return tuple(one for one in rounds if one)


def all_rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Every pair once: N - 1 rounds, N for an odd number (the circle method; one node rests in each)."""
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _ in range(len(seats) - 1):
        across = zip(seats[:half], reversed(seats[half:]))
        rounds.append(tuple(pair(a, b) for a, b in across if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(one for one in rounds if one)


class MatchingRound:
    """The pairs of one round as it grows; ``free`` are the nodes that have no partner in it yet, in order."""

    def __init__(self, free: Iterable[int], tries: dict[Pair, int], confirm: int, most: int) -> None:
        self.free = dict.fromkeys(free)
        self.pairs: list[Pair] = []
        self._tries, self._confirm, self._most = tries, confirm, most

    def put(self, link: Pair) -> bool:
        if not self.free.keys() >= {*link}:
            return False
        del self.free[link.a], self.free[link.b]
        self.pairs.append(link)
        return True

    def repeat(self, links: Iterable[Pair]) -> None:
        """Take each of these links whose ends are free; skip links that stay inconclusive."""
        for link in links:
            if self._tries.get(link, 0) < self._most:
                self.put(link)

    def assign(self, nodes: Iterable[int], partners: Sequence[int]) -> None:
        """Give each of ``nodes`` a partner it has not met; one it has met only where it has met them all."""
        pool = [node for node in partners if node in self.free]
        given: dict[int, int] = {}
        left = []
        for node in [node for node in nodes if node in self.free]:
            partner = next((one for one in pool if self._new(node, one)), None)
            if partner is not None:
                pool.remove(partner)
                given[node] = partner
            elif not self._swap_partner(node, pool, given):
                left.append(node)
        for node in left:
            known = [one for one in pool if one != node and self._tried(node, one) < self._confirm]
            # One that has not met somebody who is busy waits for it.
            if known and not any(self._new(node, one) for one in partners):
                given[node] = min(known, key=lambda one: self._tried(node, one))
                pool.remove(given[node])
        for node, partner in given.items():
            self.put(pair(node, partner))

    def _swap_partner(self, node: int, pool: list[int], given: dict[int, int]) -> bool:
        """Take over the partner of another that can go on with one of the pool."""
        for spare in pool:
            for other, partner in given.items():
                if self._new(node, partner) and self._new(other, spare):
                    given[node], given[other] = partner, spare
                    pool.remove(spare)
                    return True
        return False

    def among(self, nodes: Iterable[int], *, again: bool) -> None:
        """Pair those that have not met, far ones first; ``again``: else the least tried, in turn."""
        waiting = here = [node for node in nodes if node in self.free]
        before = len(self.pairs)
        for node in here:
            waiting = [one for one in waiting if one in self.free]
            half = len(waiting) // 2
            others = (*waiting[half:], *waiting[:half])
            partner = next((one for one in others if self._new(node, one)), None)
            if node in self.free and partner is not None:
                self.put(pair(node, partner))
        if again and len(self.pairs) == before:
            members = set(here)
            for link in sorted(self._tries, key=self._tries.__getitem__):
                if self._tries[link] < self._confirm and members.issuperset(link):
                    self.put(link)

    def _tried(self, a: int, b: int) -> int:
        return self._tries.get(pair(a, b), 0)

    def _new(self, a: int, b: int) -> bool:
        return a != b and pair(a, b) not in self._tries
