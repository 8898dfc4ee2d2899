"""Simulate a cluster with known faults in nodes and links. The random numbers are seeded."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterrun.preflight.causes.pair_search import Search, SearchResult
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import DEFAULTS

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
    limits = options.pop("limits", DEFAULTS)
    members = list(range(len(ring), len(ring) + spares))
    search = Search(list(ring), limits, members, **options)  # type: ignore[arg-type]
    while pairs := search.next_round():
        search.add_outcomes([world.test(*pair) for pair in pairs])
    return search


def link(a: int, b: int) -> Link:
    """Return the link between two nodes."""
    return frozenset((a, b))


def judged(world: PairWorld, result: SearchResult) -> tuple[bool, bool]:
    """Return whether the search blames all faults and nothing else; whether it blames something healthy."""
    nodes = {*result.nodes("broken"), *result.nodes("slow")}
    links = {link(*ends) for ends in (*result.links("broken"), *result.links("slow"))}
    faulty, faulty_links = world.broken | {*world.speeds}, world.cut | {*world.link_speeds}
    is_open = (
        result.nodes("undetermined") or result.links("undetermined") or world.broken & {*result.certified}
    )
    is_wrong = bool(nodes - faulty or links - faulty_links)
    return (nodes, links) == (faulty, faulty_links) and not is_open, is_wrong


@dataclass(frozen=True)
class Mix:
    """A kind of world with several faults."""

    nodes: int
    broken: int = 0
    cut: int = 0
    slow: int = 0
    slow_links: int = 0
    flakes: float = 0.02
    jitter: float = 0.02
    dips: float = 0.0
    factor: float = 0.5
    every: bool = False  # all pairs are tested
    lucky: float = 0.0

    def world(self, seed: int) -> PairWorld:
        """Return a world of this kind. Faulty links are links of the ring between healthy nodes."""
        luck = random.Random(f"{self}{seed}")
        drawn = luck.sample(range(self.nodes), self.broken + self.slow)
        ring = [(at, (at + 1) % self.nodes) for at in range(self.nodes)]
        sound = [ends for ends in ring if not set(ends) & set(drawn)]
        chosen = luck.sample(sound, min(len(sound), self.cut + self.slow_links))
        return PairWorld(
            seed,
            broken=frozenset(drawn[: self.broken]),
            cut=frozenset(link(*ends) for ends in chosen[: self.cut]),
            speeds=dict.fromkeys(drawn[self.broken :], self.factor),
            link_speeds={link(*ends): self.factor for ends in chosen[self.cut :]},
            flakes=self.flakes,
            jitter=self.jitter,
            dips=self.dips,
            lucky=self.lucky,
        )

    def judged(self, seed: int) -> tuple[bool, bool, int]:
        """Search in one world. Return whether the result is exact, whether it is wrong, and the rounds."""
        world = self.world(seed)
        result = searched(world, self.nodes, all_pairs=self.every)
        return (*judged(world, result), result.rounds)

    def __str__(self) -> str:
        counts = ((self.broken, "faulty"), (self.cut, "cut links"), (self.slow, f"slow to {self.factor:.0%}"))
        counts = (*counts, (self.slow_links, "slow links"))
        faults = ", ".join(f"{count} {name}" for count, name in counts if count) or "healthy"
        passes = f", faulty nodes pass {self.lucky:.0%}" if self.lucky else ""
        dips = f", {self.dips:.0%} of tests half as fast" if self.dips else ""
        every = ", all pairs" if self.every else ""
        chance = f"{self.flakes:.0%} chance, rates vary by {self.jitter:.0%}"
        return f"{self.nodes} nodes: {faults}; {chance}{dips}{passes}{every}"
