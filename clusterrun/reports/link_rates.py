"""What the tests of a report say of each link and each node, in numbers; pure, draws nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Measurement, Report

Ends = tuple[str, str]
"""The names of a link's two nodes, in the order of the report's nodes."""


@frozen
class LinkRate:
    """All tests of one pair: the best rate in GB/s (None: nothing was timed), and how they went.

    ``said`` is what the report finds wrong with it; without any test it was found by other means.
    """

    rate: float | None
    passed: int
    failed: int
    void: int
    said: str = ""


@frozen
class NodeRate:
    """All tests of one node: what it reaches, the best seconds of its own product, and how many there were.

    ``rate`` is reached with a third of its partners (the best of up to three): the best of all would
    grow with their number.
    """

    rate: float | None
    product: float | None
    tests: int
    failed: int


@frozen
class Rates:
    """``nodes`` in the report's order; medians are over nodes, None if nothing was timed."""

    nodes: Mapping[str, NodeRate]
    links: Mapping[Ends, LinkRate]
    median: float | None
    median_product: float | None

    def share(self, rate: float | None) -> float | None:
        return rate / self.median if rate is not None and self.median else None

    def was_timed(self, name: str) -> bool:
        """Whether a node has a rate, or a product where no pair of anybody was timed."""
        node = self.nodes[name]
        return node.rate is not None or (self.median is None and node.product is not None)

    def behind(self, name: str) -> float:
        """How far a node is behind the others: 1 is as fast as the median, 0.5 half as fast.

        By its worse side, network or processor. A node that was not timed is not behind.
        """
        node = self.nodes[name]
        shares = [share] if (share := self.share(node.rate)) is not None else []
        if node.product and self.median_product:
            shares.append(self.median_product / node.product)
        return min(shares, default=1.0)


def rates(report: Report) -> Rates:
    names = _names(report)
    place = {name: at for at, name in enumerate(names)}
    pairs: dict[Ends, list[Measurement]] = {}
    products: dict[str, list[Measurement]] = {}
    for test in report.tests:
        if test.test == "pair" and len(set(test.nodes)) == 2:
            pairs.setdefault(_ends(test.nodes, place), []).append(test)
        elif test.test == "product" and len(test.nodes) == 1 and test.outcome == "passed":
            products.setdefault(test.nodes[0], []).append(test)
    found = {_ends((link.a, link.b), place): link.said for link in report.links if link.a != link.b}
    links = {ends: _link(pairs.get(ends, []), found.get(ends, "")) for ends in (*pairs, *found)}
    of_node: dict[str, list[LinkRate]] = {}
    for ends, link in links.items():
        for name in ends:
            of_node.setdefault(name, []).append(link)
    nodes = {name: _node(of_node.get(name, ()), products.get(name, ())) for name in names}
    every = nodes.values()
    return Rates(nodes, links, _median(one.rate for one in every), _median(one.product for one in every))


def _names(report: Report) -> list[str]:
    """Every node that is spoken of: those of the report, then who stands in a test only."""
    tested = (name for test in report.tests for name in test.nodes)
    linked = (name for link in report.links for name in (link.a, link.b))
    return list(dict.fromkeys([*(node.node for node in report.nodes), *report.world, *tested, *linked]))


def _ends(names: Iterable[str], place: Mapping[str, int]) -> Ends:
    a, b = sorted(set(names), key=place.__getitem__)
    return a, b


def _link(tests: list[Measurement], said: str) -> LinkRate:
    outcomes = [test.outcome for test in tests]
    passed, failed, void = (outcomes.count(word) for word in ("passed", "failed", "void"))
    timed = (test.gigabytes_per_second for test in tests if test.outcome == "passed")
    best = max((rate for rate in timed if rate is not None), default=None)
    return LinkRate(best, passed, failed, void, said)


def _node(links: Iterable[LinkRate], products: Iterable[Measurement]) -> NodeRate:
    links = list(links)
    timed = sorted((link.rate for link in links if link.rate is not None), reverse=True)
    rate = timed[(len(timed) - 1) // 3] if timed else None
    failed = sum(link.failed for link in links)
    tests = failed + sum(link.passed for link in links)
    return NodeRate(rate, min((one.seconds for one in products), default=None), tests, failed)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
