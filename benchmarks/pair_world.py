"""A make-believe cluster whose pairs can be tested: what is broken in it is known, and luck is seeded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.preflight.causes.pair_search import Search, SearchResult
from clusterrun.preflight.observations import GroupTest

Link = frozenset[int]


@dataclass
class PairWorld:
    """What is true, and how a test of two nodes goes there.

    A test fails if a node (but for the chance `lucky`) or the link between the two is broken, else with
    the chance `flakes`.
    Its rate is the slowest of the three speeds, times luck: normal around 1 with `jitter`, never above
    three deviations; with the chance `dips` it is halved for once. Racks hold `rack` nodes (0: there
    is one), and `across` is the share of its rate that a link between two of them has. `silent` nodes
    are gone: their tests tell nothing.
    """

    seed: int
    broken: frozenset[int] = frozenset()
    cut: frozenset[Link] = frozenset()
    speeds: Mapping[int, float] = field(default_factory=dict)
    link_speeds: Mapping[Link, float] = field(default_factory=dict)
    flakes: float = 0.0
    jitter: float = 0.0
    dips: float = 0.0
    silent: frozenset[int] = frozenset()
    lucky: float = 0.0
    rack: int = 0
    across: float = 1.0
    full: float = 100.0

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)

    def test(self, a: int, b: int) -> GroupTest:
        """One test of the pair."""
        link = frozenset((a, b))
        if self.silent & link:
            return GroupTest((a, b), None)
        broken = self.broken & link and self._luck.random() >= self.lucky
        if broken or link in self.cut or self._luck.random() < self.flakes:
            return GroupTest((a, b), False)
        speed = min(self.speeds.get(a, 1.0), self.speeds.get(b, 1.0), self.link_speeds.get(link, 1.0))
        if self.rack:
            speed *= self.across if a // self.rack != b // self.rack else 1.0
        luck = max(0.1, min(1 + 3 * self.jitter, self._luck.gauss(1.0, self.jitter)))
        dip = 0.5 if self._luck.random() < self.dips else 1.0
        return GroupTest((a, b), True, self.full * speed * luck * dip)


def searched(
    world: PairWorld, nodes: int | Sequence[int], spares: int = 0, **options: object
) -> SearchResult:
    """Return what the search says of that world; nodes are numbered from 0, spares after them."""
    return ended_search(world, nodes, spares, **options).result()


def ended_search(world: PairWorld, nodes: int | Sequence[int], spares: int = 0, **options: object) -> Search:
    """Return the search after its last round in that world."""
    ring = range(nodes) if isinstance(nodes, int) else nodes
    search = Search(list(ring), list(range(len(ring), len(ring) + spares)), **options)  # type: ignore[arg-type]
    while pairs := search.next_round():
        search.take([world.test(pair.a, pair.b) for pair in pairs])
    return search


def link(a: int, b: int) -> Link:
    """A link of the world."""
    return frozenset((a, b))


def exact(world: PairWorld, said: SearchResult) -> bool:
    """Whether just what is broken is blamed, nothing is left open, and all else is certified or untested."""
    links = {frozenset((one.a, one.b)) for one in said.bad_links}
    return (
        set(said.bad) == world.broken
        and links == world.cut
        and not said.undetermined
        and not said.undetermined_links
        and not world.broken & set(said.certified)
    )


def neighbours_then_fastest(world: PairWorld, count: int) -> set[int]:
    """DLRover's rule: pairs in rank order, then the fastest with the slowest; bad is who failed twice."""
    seconds: dict[int, float] = {}
    failed: set[int] = set()
    for group in _threes(range(count)):
        good = _group(world, group)
        for node in group:
            seconds[node] = 1.0 + world._luck.random() if good else 3600.0
        failed |= set() if good else set(group)
    if not failed:
        return set()
    order = sorted(range(count), key=seconds.__getitem__)
    ends = [order[at // 2] if at % 2 == 0 else order[-1 - at // 2] for at in range(count)]
    again = {node for group in _threes(ends) if not _group(world, group) for node in group}
    return failed & again


def _threes(order: Iterable[int]) -> list[list[int]]:
    """Two and two; an odd last one joins the group before it."""
    nodes = list(order)
    groups = [nodes[at : at + 2] for at in range(0, len(nodes), 2)]
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2] += groups.pop()
    return groups


def _group(world: PairWorld, group: Sequence[int]) -> bool:
    """Whether a test of two or three nodes passes: one chance of a flake, every link counts."""
    links = [frozenset((a, b)) for at, a in enumerate(group) for b in group[at + 1 :]]
    whole = not world.broken & set(group) and not any(one in world.cut for one in links)
    return whole and world._luck.random() >= world.flakes
