"""Simulate clusters behind trees of switches whose uplinks are cut or slow."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.pair_world import PairWorld
from clusterrun.preflight.causes.pair_search import SearchResult
from clusterrun.preflight.observations import GroupTest

Place = tuple[int, ...]
SHARES = (0.5, 0.25, 0.1)


@dataclass
class TreeWorld(PairWorld):
    """A world whose nodes are connected by a tree of switches."""

    # The switches above each node, the topmost first.
    places: Mapping[int, Place] = field(default_factory=dict)
    # Share of the full rate of the link above a switch; 0 if it is cut, 1 for other switches.
    uplinks: Mapping[Place, float] = field(default_factory=dict)

    def share(self, a: int, b: int) -> float:
        """Return the share of the full rate between two nodes."""
        first, second = self.places[a], self.places[b]
        common = 0
        while common < len(first) and first[common] == second[common]:
            common += 1
        way = [place[:depth] for place in (first, second) for depth in range(common + 1, len(first) + 1)]
        return min((self.uplinks.get(switch, 1.0) for switch in way), default=1.0)

    def test(self, a: int, b: int) -> GroupTest:
        test = super().test(a, b)
        share = self.share(a, b)
        if test.passed and not share:
            return GroupTest((a, b), False)
        return GroupTest((a, b), test.passed, test.rate * share) if test.rate else test

    def groups(self, least: float) -> list[tuple[int, ...]]:
        """Return the groups of healthy nodes with at least that share between them, the largest first."""
        groups: list[list[int]] = []
        for node in self.places:
            if node in self.broken:
                continue
            group = next((group for group in groups if self.share(node, group[0]) >= least), None)
            if group is None:
                groups.append([node])
            else:
                group.append(node)
        return sorted(map(tuple, groups), key=lambda group: (-len(group), group))


@dataclass(frozen=True)
class Tree:
    """A kind of tree worlds. ``world`` draws the rest at random."""

    levels: int  # levels of switches and nodes
    shares: Sequence[float] = (0.0,)  # possible shares of a faulty uplink
    wrong: int = 1  # most faulty uplinks
    broken: int = 0  # broken nodes
    flakes: float = 0.0
    jitter: float = 0.0
    shuffled: bool = False  # the order of nodes does not follow the switches
    alone: bool = False  # one group has a single node
    most: int = 64  # nodes

    def world(self, seed: int) -> TreeWorld:
        """Return a world of this kind. Nodes are numbered from 0."""
        luck = random.Random(f"{self}{seed}")
        while True:
            world = self._drawn(luck, seed)
            sizes = [len(group) for group in world.groups(1e-9)]
            fast = [len(group) for group in world.groups(1.0)]
            expected = sizes if 0.0 in self.shares else fast
            single = 1 in expected or 1 in fast
            if len(expected) > 1 and expected[0] > 2 and single == self.alone:
                return world

    def _drawn(self, luck: random.Random, seed: int) -> TreeWorld:
        count = luck.randint(4, luck.choice((8, 16, self.most)))
        leaf_size = luck.randint(1 if self.alone else 2, max(2, count // 2))
        leaves = [at // leaf_size for at in range(count)]
        pod_size = luck.randint(1, 3) if self.levels > 2 else 0
        places = [(leaf // pod_size, leaf) if pod_size else (leaf,) for leaf in leaves]
        if self.shuffled:
            luck.shuffle(places)
        switches = sorted({place[:depth] for place in places for depth in range(1, len(place) + 1)})
        chosen = luck.sample(switches, min(len(switches), luck.randint(1, self.wrong)))
        return TreeWorld(
            seed,
            broken=frozenset(luck.sample(range(count), self.broken)),
            flakes=self.flakes,
            jitter=self.jitter,
            places=dict(enumerate(places)),
            uplinks={switch: luck.choice(tuple(self.shares)) for switch in chosen},
        )


def judged(world: TreeWorld, result: SearchResult) -> tuple[bool, bool]:
    """Return whether the result is exact, and whether it blames or separates healthy nodes.

    A node that is alone in its group is blamed itself, because its own link is cut or slow.
    """
    parts, paces = world.groups(1e-9), world.groups(1.0)
    single = {part[0] for part in parts if len(part) == 1} if len(parts) > 1 else set()
    slow = {pace[0] for pace in paces if len(pace) == 1} - single
    bad, cut, late = set(result.nodes("broken")), result.links("broken"), set(result.nodes("slow"))
    wrong = bool(bad - world.broken - single or cut or late - slow or result.links("slow"))
    wrong = wrong or _split(result.parts, parts) or _split(result.slow_parts, paces)
    exact = bad == world.broken | single and late == slow
    exact = exact and not result.nodes("undetermined") and not result.links("undetermined")
    exact = exact and set(result.parts) == _many(parts)
    within = [_many([pace for pace in paces if set(pace) <= set(part)]) for part in parts]
    return exact and set(result.slow_parts) == set().union(*within) and not wrong, wrong


def _many(groups: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the groups of two and more nodes; none if there is only one."""
    large = {group for group in groups if len(group) > 1}
    return large if len(large) > 1 else set()


def _split(reported: Sequence[tuple[int, ...]], actual: Sequence[tuple[int, ...]]) -> bool:
    """Return whether the report separates nodes of one group."""
    place = {node: at for at, group in enumerate(reported) for node in group}
    return any(len({place[node] for node in group if node in place}) > 1 for group in actual)
