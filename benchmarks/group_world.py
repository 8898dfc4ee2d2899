"""Simulate clusters in which pairs pass and larger groups fail, and judge what the search reports."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterrun.preflight.causes.groups import GroupSearch, GroupsResult
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import DEFAULTS


@dataclass
class GroupWorld:
    """A simulated cluster with its faults."""

    count: int  # nodes, numbered from 0
    seed: int = 0
    # Faulty nodes, each with the size of the smallest group in which it fails.
    nodes: Mapping[int, int] = field(default_factory=dict)
    # A group of ``size`` or more nodes fails if ``least`` of these nodes are in it; 0: no such fault.
    together: frozenset[int] = frozenset()
    least: int = 0
    # A group of ``size`` or more nodes fails if it has nodes on both sides, as over a faulty uplink.
    across: frozenset[int] = frozenset()
    size: int = 3
    flakes: float = 0.0  # share of the tests that fail by chance
    tests: int = 0  # tests so far, and failed ones
    failed: int = 0

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)

    def fails(self, group: frozenset[int]) -> bool:
        """Return whether the group always fails."""
        if any(node in group and len(group) >= size for node, size in self.nodes.items()):
            return True
        if self.least and len(group) >= self.size and len(group & self.together) >= self.least:
            return True
        return bool(len(group) >= self.size and group & self.across and group - self.across)

    def test(self, nodes: tuple[int, ...]) -> GroupTest:
        """Return the outcome of one test of a group."""
        failed = self.fails(frozenset(nodes)) or self._luck.random() < self.flakes
        self.tests += 1
        self.failed += failed
        return GroupTest(nodes, not failed)


def searched(world: GroupWorld) -> GroupsResult:
    """Return the result of the search in a world whose whole set has failed."""
    search = GroupSearch(range(world.count), DEFAULTS)
    while groups := search.next_round():
        search.add_outcomes([world.test(group) for group in groups])
    return search.result()


def judged(world: GroupWorld, result: GroupsResult) -> str:
    """Return ``exact``, ``set``, ``undecided`` or ``wrong``.

    ``set``: the nodes are right, but the fault may be in their connection.
    """
    faulty = set(world.nodes)
    single = world.across if len(world.across) == 1 else set()
    if not set(result.bad) <= faulty | single:
        return "wrong"
    sides = [faulty, set(world.across)]
    if 2 * len(world.across) == world.count:  # an uplink between two halves has no smaller side
        sides.append(set(range(world.count)) - world.across)
    if result.apart and set(result.apart) not in sides:
        return "wrong"
    if result.bad and set(result.bad) == faulty | single:
        return "exact"
    if result.apart:
        return "set"
    return "undecided" if faulty or single or result.bad else "exact"


def nodes_world(bad: int, seed: int, count: int, flakes: float = 0.0) -> GroupWorld:
    """Return a world with ``bad`` faulty nodes. Each fails in groups of a size between 3 and 9 and larger."""
    luck = random.Random(f"{seed} {count} {bad}")
    chosen = luck.sample(range(count), bad)
    return GroupWorld(
        count, seed, {node: luck.randint(3, min(9, count - 1)) for node in chosen}, flakes=flakes
    )


def other_world(kind: str, seed: int, count: int, flakes: float = 0.0) -> GroupWorld:
    """Return a world without a faulty node: ``healthy``, ``size``, ``conflict``, ``crowd`` or ``uplink``."""
    luck = random.Random(f"{seed} {count} {kind}")
    world = GroupWorld(count, seed, flakes=flakes, size=luck.randint(3, min(9, count)))
    crowd = frozenset(luck.sample(range(count), luck.randint(3, count)))
    if kind == "size":
        world.together, world.least = frozenset(range(count)), luck.randint(3, count)
    elif kind == "conflict":
        world.together, world.least = frozenset(luck.sample(range(count), 2)), 2
    elif kind == "crowd":
        world.together, world.least = crowd, luck.randint(2, len(crowd))
    elif kind == "uplink":
        leaf = luck.randint(1, count // 2)
        order = list(range(count))
        if luck.random() < 0.5:
            luck.shuffle(order)
        world.across = frozenset(order[:leaf])
    return world
