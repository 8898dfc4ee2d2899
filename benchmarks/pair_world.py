"""Simulate a cluster with known faults in nodes and links. The random numbers are seeded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.preflight.causes.pair_search import Search, SearchResult
from clusterrun.preflight.observations import GroupTest

Link = frozenset[int]


@dataclass
class PairWorld:
    """The faults of a cluster. ``test`` returns the outcome of a test of two of its nodes.

    The rate of a test is the lowest speed of the two nodes and their link, times a random factor.
    """

    seed: int
    broken: frozenset[int] = frozenset()  # nodes whose tests fail
    cut: frozenset[Link] = frozenset()  # links whose tests fail
    # Shares of the full rate; 1 for nodes and links without an entry.
    speeds: Mapping[int, float] = field(default_factory=dict)
    link_speeds: Mapping[Link, float] = field(default_factory=dict)
    flakes: float = 0.0  # chance that a test of healthy nodes fails
    jitter: float = 0.0  # standard deviation of the rate, cut off at three of it above 1
    dips: float = 0.0  # chance that the rate of one test is halved
    silent: frozenset[int] = frozenset()  # nodes that do not answer
    lucky: float = 0.0  # chance that a test of a broken node passes
    rack: int = 0  # nodes per rack; 0: all nodes are in one rack
    across: float = 1.0  # share of the rate between two racks
    full: float = 100.0  # GB/s

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)

    def test(self, a: int, b: int) -> GroupTest:
        """Return the outcome of one test of the pair."""
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
    """Return the result of the search in that world. Nodes are numbered from 0, spares after them."""
    return ended_search(world, nodes, spares, **options).result()


def ended_search(world: PairWorld, nodes: int | Sequence[int], spares: int = 0, **options: object) -> Search:
    """Return the search after its last round in that world."""
    ring = range(nodes) if isinstance(nodes, int) else nodes
    search = Search(list(ring), list(range(len(ring), len(ring) + spares)), **options)  # type: ignore[arg-type]
    while pairs := search.next_round():
        search.take([world.test(pair.a, pair.b) for pair in pairs])
    return search


def link(a: int, b: int) -> Link:
    """Return the link between two nodes."""
    return frozenset((a, b))


def exact(world: PairWorld, result: SearchResult) -> bool:
    """Return whether the search blames all faults, nothing else, and leaves nothing undetermined."""
    links = {frozenset((pair.a, pair.b)) for pair in result.bad_links}
    return (
        set(result.bad) == world.broken
        and links == world.cut
        and not result.undetermined
        and not result.undetermined_links
        and not world.broken & set(result.certified)
    )


def neighbours_then_fastest(world: PairWorld, count: int) -> set[int]:
    """Return the nodes that DLRover's rule blames: those that failed twice.

    It tests neighbours in rank order first, then the fastest with the slowest.
    """
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
    """Return groups of two nodes. An odd last node joins the group before it."""
    nodes = list(order)
    groups = [nodes[at : at + 2] for at in range(0, len(nodes), 2)]
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2] += groups.pop()
    return groups


def _group(world: PairWorld, group: Sequence[int]) -> bool:
    """Return whether a test of two or three nodes passes. It fails by chance at most once."""
    links = [frozenset((a, b)) for at, a in enumerate(group) for b in group[at + 1 :]]
    is_healthy = not world.broken & set(group) and not any(link in world.cut for link in links)
    return is_healthy and world._luck.random() >= world.flakes
