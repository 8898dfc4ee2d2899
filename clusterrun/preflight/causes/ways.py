"""Explain directed ways that do not work: which node, side of a node, link, way or cut is to blame.

A way leads from one node to another. Its *items* are the tests on it: TCP ports, and large packets.
The same causes explain failed dials, lost packets and silent ports:

- a node: ``all`` its ways, those that come ``in``, or those that go ``out``
- a ``link`` between two nodes, or one ``way`` of it
- a ``cut`` around a group of nodes that reach each other

See `cover.py` for prices, savings and leads.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.components import Components
from clusterrun.preflight.causes.cover import Cover, Prices
from clusterrun.preflight.thresholds import WITNESSES

Way = tuple[int, int]
Parts = tuple[tuple[int, ...], ...]

# One side of a node is one of three ways to fail: in, out or altogether. A cut, and a node that fails on all
# its ways but on no item in common, are as rare.
RARER = math.log(3)
# Chance does not explain a way that failed on several ports, twice, nor a message that stalled for seconds
# while the kernel repeated it: one in a billion. Any number above all prices decides the same.
UNEXPLAINED = math.log(1e9)


@frozen
class WayTest:
    a: int  # the way leads from this node
    b: int  # to this one
    tried: frozenset[int]  # items that were tried
    failed: frozenset[int]  # items of these that never worked
    works: bool = True  # if no item failed: the way certainly works, so it joins its ends to a group

    @property
    def ends(self) -> Way:
        return self.a, self.b


@frozen
class WayCause:
    fault: str  # all, in, out, link, way or cut
    nodes: tuple[int, ...]  # the node; both ends of a link or way; the group that is cut off
    items: frozenset[int] = frozenset()  # of a node: items that fail on all its ways; () if these differ
    ways: tuple[Way, ...] = ()  # the ways that it explains
    lead: float = 0.0  # nats over chance


def find_causes(
    tests: Iterable[WayTest], nats: Callable[[Sequence[Way]], float] | None = None
) -> tuple[list[WayCause], Parts]:
    """Return the causes of failed ways, and the parts of the network if it is partitioned (else ()).

    ``nats``: what these ways cost without a cause, less what they cost with one common cause. If it is None,
    each failed way costs ``UNEXPLAINED``, and a way that works refutes every cause that contains it.
    """
    return WayExplanation(list(tests), nats).result()


class WayExplanation:
    def __init__(self, tests: Sequence[WayTest], nats: Callable[[Sequence[Way]], float] | None) -> None:
        self.nats = nats
        self.failed = {test.ends: test for test in tests if test.failed}
        self.prices = Prices(len({node for test in tests for node in test.ends}))
        self.groups: list[tuple[int, ...]] = []
        self.explains: dict[WayCause, list[Way]] = {}
        if self.failed:
            components = Components()
            doubtful = self.failed.keys() | {test.ends for test in tests if not test.works}
            ways = [test.ends for test in tests if test.ends not in doubtful]
            components.join(ends for ends in ways if ends[::-1] not in doubtful)
            nodes = sorted({node for test in tests for node in test.ends})
            self.groups = [group for group in components.of(nodes) if len(group) > 1]
            self._add_candidates(tests)

    def _add_candidates(self, tests: Sequence[WayTest]) -> None:
        suspects = {node for ends in self.failed for node in ends}
        outgoing: dict[int, list[WayTest]] = defaultdict(list)
        incoming: dict[int, list[WayTest]] = defaultdict(list)
        for test in tests:
            if test.a in suspects:
                outgoing[test.a].append(test)
            if test.b in suspects:
                incoming[test.b].append(test)
        for node in sorted(suspects):
            into, out = incoming[node], outgoing[node]
            self._add_node("in", node, into)
            self._add_node("out", node, out)
            if any(test.failed for test in into) and any(test.failed for test in out):
                self._add_node("all", node, into + out)
        # Ways come before links: of two causes that save the same, the first one is chosen.
        for ends in self.failed:
            self.explains[WayCause("way", ends)] = [ends]
        for a, b in self.failed:
            failed_ways = [ends for ends in ((a, b), (b, a)) if ends in self.failed]
            self.explains.setdefault(WayCause("link", (min(a, b), max(a, b))), failed_ways)
        counted = [test.ends for test in tests] if self.nats else list(self.failed)
        for group in self.groups[1:]:  # the largest group is the one from which others are cut off
            members = set(group)
            crossing = [ends for ends in counted if len(members & {*ends}) == 1]
            self.explains[WayCause("cut", group)] = crossing

    def _add_node(self, fault: str, node: int, tests: Sequence[WayTest]) -> None:
        """Add a side of a node as a candidate if an item fails on every way of it that tried the item.

        If ``nats`` is set, working ways are evidence against the candidate but do not refute it.
        """
        failed_with: dict[int, set[int]] = defaultdict(set)
        worked: set[int] = set()
        for test in tests:
            if not self.nats:
                worked |= test.tried - test.failed
            for item in test.failed:
                failed_with[item].add(test.a if test.b == node else test.b)
        items = frozenset(
            item
            for item, partners in failed_with.items()
            if item not in worked and len(partners) >= WITNESSES
        )
        ways = [test.ends for test in tests]
        if not self.nats:
            # Answers from blocked ports get lost too: a way may fail on more items than the cause explains.
            ways = [
                test.ends
                for test in tests
                if test.failed and 2 * len(test.failed & items) >= len(test.failed)
            ]
        partners = {test.a if test.b == node else test.b for test in tests}
        if items and ways:
            self.explains[WayCause(fault, (node,), items)] = ways
        explained = len(ways) if items else 0
        if explained < len(tests) and len(partners) >= WITNESSES and all(test.failed for test in tests):
            # A firewall that drops a range of ports also drops answers to it: each way loses other items.
            self.explains[WayCause(fault, (node,))] = [test.ends for test in tests]

    def _saving(self, cause: WayCause, explained: Counter[Way]) -> float:
        ways = [ends for ends in self.explains[cause] if not explained[ends]]
        nats = self.nats(ways) if self.nats else len(ways) * UNEXPLAINED
        if cause.fault in ("way", "link"):
            return nats - self.prices.link
        is_vague = cause.fault != "cut" and not cause.items
        return nats - self.prices.node - RARER * (cause.fault != "all") - RARER * is_vague

    def result(self) -> tuple[list[WayCause], Parts]:
        """Exclude nodes and cuts that do not lead over their rivals. Links explain what they leave."""
        excluded: set[WayCause] = set()
        while True:
            cover = Cover(self.explains, self._saving, excluded)
            leads = {cause: cover.leads(cause) for cause in cover.chosen}
            doubtful = [
                cause
                for cause, (_, over_rivals) in leads.items()
                if cause.fault not in ("link", "way") and over_rivals < self.prices.rival
            ]
            if not doubtful:
                break
            excluded.update(doubtful)
        causes = [
            WayCause(cause.fault, cause.nodes, cause.items, tuple(self.explains[cause]), over_chance)
            for cause, (over_chance, _) in leads.items()
        ]
        return causes, self._parts({cause.nodes for cause in causes if cause.fault == "cut"})

    def _parts(self, cut_off: set[tuple[int, ...]]) -> Parts:
        if not cut_off:
            return ()
        others = sorted(node for group in self.groups if group not in cut_off for node in group)
        parts = [tuple(others), *cut_off]
        return tuple(sorted(parts, key=lambda part: (-len(part), part)))
