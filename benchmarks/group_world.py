"""Make-believe clusters in which pairs pass and larger groups fail, and what is true of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterrun.preflight.causes.groups import GroupSearch, GroupsResult
from clusterrun.preflight.observations import GroupTest


@dataclass
class GroupWorld:
    """``nodes`` fail, each in groups of so many and more; ``flakes``: that share of tests fails by chance.

    ``together``: so many of these fail in one group. ``across``: groups of ``size`` and more with some of
    these and some others fail, as over an uplink.
    """

    count: int
    seed: int = 0
    nodes: Mapping[int, int] = field(default_factory=dict)
    together: frozenset[int] = frozenset()
    least: int = 0
    across: frozenset[int] = frozenset()
    size: int = 3
    flakes: float = 0.0
    tests: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)

    def fails(self, group: frozenset[int]) -> bool:
        """Whether it always fails."""
        if any(one in group and len(group) >= size for one, size in self.nodes.items()):
            return True
        if self.least and len(group) >= self.size and len(group & self.together) >= self.least:
            return True
        return bool(len(group) >= self.size and group & self.across and group - self.across)

    def test(self, nodes: tuple[int, ...]) -> GroupTest:
        """One test of a group."""
        failed = self.fails(frozenset(nodes)) or self._luck.random() < self.flakes
        self.tests += 1
        self.failed += failed
        return GroupTest(nodes, not failed)


def searched(world: GroupWorld) -> GroupsResult:
    """What the search says of that world, whose whole set has failed."""
    search = GroupSearch(range(world.count))
    while groups := search.next_round():
        search.take([world.test(group) for group in groups])
    return search.result()


def judged(world: GroupWorld, said: GroupsResult) -> str:
    """``exact``, ``set`` (the right nodes, though perhaps what connects them), ``undecided`` or ``wrong``."""
    true = set(world.nodes)
    single = world.across if len(world.across) == 1 else set()
    if not set(said.bad) <= true | single:
        return "wrong"
    sides = [true, set(world.across)]
    if 2 * len(world.across) == world.count:  # an uplink between two halves has no smaller side
        sides.append(set(range(world.count)) - world.across)
    if said.apart and set(said.apart) not in sides:
        return "wrong"
    if said.bad and set(said.bad) == true | single:
        return "exact"
    if said.apart:
        return "set"
    return "undecided" if true or single or said.bad else "exact"


def nodes_world(seed: int, count: int, bad: int, flakes: float = 0.0) -> GroupWorld:
    """One of those with ``bad`` nodes that fail in groups of three to nine and more."""
    luck = random.Random(f"{seed} {count} {bad}")
    chosen = luck.sample(range(count), bad)
    return GroupWorld(count, seed, {one: luck.randint(3, min(9, count - 1)) for one in chosen}, flakes=flakes)


def other_world(seed: int, count: int, kind: str, flakes: float = 0.0) -> GroupWorld:
    """One in which no node is to blame: ``healthy``, ``size``, ``conflict``, ``crowd`` or ``uplink``."""
    luck = random.Random(f"{seed} {count} {kind}")
    world = GroupWorld(count, seed, flakes=flakes, size=luck.randint(3, min(9, count)))
    some = frozenset(luck.sample(range(count), luck.randint(3, count)))
    if kind == "size":
        world.together, world.least = frozenset(range(count)), luck.randint(3, count)
    elif kind == "conflict":
        world.together, world.least = frozenset(luck.sample(range(count), 2)), 2
    elif kind == "crowd":
        world.together, world.least = some, luck.randint(2, len(some))
    elif kind == "uplink":
        leaf = luck.randint(1, count // 2)
        order = list(range(count))
        if luck.random() < 0.5:
            luck.shuffle(order)
        world.across = frozenset(order[:leaf])
    return world
