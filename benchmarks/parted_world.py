"""Make-believe clusters behind trees of switches whose uplinks are cut or slow, and what is true of them."""

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
    """A world whose nodes hang on switches: ``places`` are those above each node, the topmost first.

    ``uplinks`` are shares of the full rate that the link above a switch lets through; 0 where it is cut.
    """

    places: Mapping[int, Place] = field(default_factory=dict)
    uplinks: Mapping[Place, float] = field(default_factory=dict)

    def share(self, a: int, b: int) -> float:
        """The share of the full rate that all switches between two nodes let through."""
        one, other = self.places[a], self.places[b]
        common = 0
        while common < len(one) and one[common] == other[common]:
            common += 1
        way = [place[:depth] for place in (one, other) for depth in range(common + 1, len(one) + 1)]
        return min((self.uplinks.get(switch, 1.0) for switch in way), default=1.0)

    def test(self, a: int, b: int) -> GroupTest:
        said = super().test(a, b)
        through = self.share(a, b)
        if said.passed and not through:
            return GroupTest((a, b), False)
        return GroupTest((a, b), said.passed, said.rate * through) if said.rate else said

    def groups(self, least: float) -> list[tuple[int, ...]]:
        """Who of the healthy reach each other with at least that share, the largest group first."""
        found: list[list[int]] = []
        for node in (one for one in self.places if one not in self.broken):
            mine = next((group for group in found if self.share(node, group[0]) >= least), None)
            if mine is None:
                found.append([node])
            else:
                mine.append(node)
        return sorted(map(tuple, found), key=lambda one: (-len(one), one))


@dataclass(frozen=True)
class Tree:
    """A kind of such worlds; what is left open is drawn.

    ``levels`` of switches; ``shares`` of the uplinks that are wrong, of which there are ``wrong`` at most.
    ``broken`` nodes are inside groups that stay groups without them. ``shuffled``: the order of nodes tells
    nothing of their switches.
    """

    levels: int
    shares: Sequence[float] = (0.0,)
    wrong: int = 1
    broken: int = 0
    flakes: float = 0.0
    jitter: float = 0.0
    shuffled: bool = False
    alone: bool = False
    most: int = 64

    def world(self, seed: int) -> TreeWorld:
        """One of them; nodes are numbered from 0."""
        luck = random.Random(f"{self}{seed}")
        while True:
            world = self._drawn(luck, seed)
            sizes = [len(group) for group in world.groups(1e-9)]
            fast = [len(group) for group in world.groups(1.0)]
            apart = sizes if 0.0 in self.shares else fast
            single = 1 in apart or 1 in fast
            if len(apart) > 1 and apart[0] > 2 and single == self.alone:
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


def judged(world: TreeWorld, said: SearchResult) -> tuple[bool, bool]:
    """Whether all is told as it is, and whether anything healthy was blamed or told apart.

    A node that is the only one of its group is blamed itself, as one whose own link is cut or slow.
    """
    parts, paces = world.groups(1e-9), world.groups(1.0)
    single = {part[0] for part in parts if len(part) == 1} if len(parts) > 1 else set()
    slow = {pace[0] for pace in paces if len(pace) == 1} - single
    bad, cut, late = set(said.bad), set(said.bad_links), set(said.slow)
    wrong = bool(bad - world.broken - single or cut or late - slow or said.slow_links)
    wrong = wrong or _split(said.parts, parts) or _split(said.slow_parts, paces)
    told = bad == world.broken | single and late == slow
    told = told and not said.undetermined and not said.undetermined_links
    told = told and set(said.parts) == _many(parts)
    within = [_many([pace for pace in paces if set(pace) <= set(part)]) for part in parts]
    return told and set(said.slow_parts) == set().union(*within) and not wrong, wrong


def _many(groups: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """The groups of two and more, where there are several of them."""
    found = {group for group in groups if len(group) > 1}
    return found if len(found) > 1 else set()


def _split(said: Sequence[tuple[int, ...]], true: Sequence[tuple[int, ...]]) -> bool:
    """Whether nodes of one group were told apart."""
    place = {node: at for at, group in enumerate(said) for node in group}
    return any(len({place[node] for node in group if node in place}) > 1 for group in true)
