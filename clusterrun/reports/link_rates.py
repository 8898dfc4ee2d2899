"""Compute the rates of each link and each node from the tests of a report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Measurement, Report

# The names of a link's two nodes, in the order of the report's nodes.
Ends = tuple[str, str]


@frozen
class LinkRate:
    """The outcome of all tests of one pair of nodes. A link without tests has a finding from elsewhere."""

    rate: float | None  # best rate in GB/s, None if no test was timed
    passed: int  # tests by outcome
    failed: int
    void: int
    message: str = ""  # finding of the report about the link, '' if there is none


@frozen
class NodeRate:
    """The outcome of all tests of one node."""

    # GB/s that the node reaches with a third of its partners (the best of up to three), None if no pair was
    # timed. The best rate of all partners would grow with their number.
    rate: float | None
    product: float | None  # best seconds of its matrix product, None if not timed
    tests: int  # tests of pairs that passed or failed
    failed: int


@frozen
class Rates:
    """The rates of all nodes and links of a report."""

    nodes: Mapping[str, NodeRate]  # by name, in the report's order
    links: Mapping[Ends, LinkRate]
    median: float | None  # GB/s, median over nodes, None if no pair was timed
    median_product: float | None  # seconds, median over nodes, None if no product was timed

    def share(self, rate: float | None) -> float | None:
        return rate / self.median if rate is not None and self.median else None

    def was_timed(self, name: str) -> bool:
        """Return whether a node has a rate. A product is enough if no pair of the report was timed."""
        node = self.nodes[name]
        return node.rate is not None or (self.median is None and node.product is not None)

    def behind(self, name: str) -> float:
        """Return the speed of a node relative to the median: 1 is as fast, 0.5 half as fast.

        The slower of network and processor counts. The value is 1 for a node that was not timed.
        """
        node = self.nodes[name]
        shares = [share] if (share := self.share(node.rate)) is not None else []
        if node.product and self.median_product:
            shares.append(self.median_product / node.product)
        return min(shares, default=1.0)


def rates(report: Report) -> Rates:
    """Return the rates of a report. The nodes are those of the report, then others that tests name."""
    names_in_tests = (name for test in report.tests for name in test.nodes)
    names_in_links = (name for link in report.links for name in (link.a, link.b))
    reported = [node.node for node in report.nodes]
    names = list(dict.fromkeys([*reported, *report.world, *names_in_tests, *names_in_links]))
    position = {name: index for index, name in enumerate(names)}
    pairs: dict[Ends, list[Measurement]] = {}
    products: dict[str, list[Measurement]] = {}
    for test in report.tests:
        if test.test == "pair" and len(set(test.nodes)) == 2:
            pairs.setdefault(_ends(test.nodes, position), []).append(test)
        elif test.test == "product" and len(test.nodes) == 1 and test.outcome == "passed":
            products.setdefault(test.nodes[0], []).append(test)
    finding_by_link = {
        _ends((link.a, link.b), position): link.message for link in report.links if link.a != link.b
    }
    links = {
        ends: _link(pairs.get(ends, []), finding_by_link.get(ends, "")) for ends in (*pairs, *finding_by_link)
    }
    links_by_node: dict[str, list[LinkRate]] = {}
    for ends, link in links.items():
        for name in ends:
            links_by_node.setdefault(name, []).append(link)
    nodes = {name: _node(links_by_node.get(name, ()), products.get(name, ())) for name in names}
    median = _median(node.rate for node in nodes.values())
    median_product = _median(node.product for node in nodes.values())
    return Rates(nodes, links, median, median_product)


def _ends(names: Iterable[str], place: Mapping[str, int]) -> Ends:
    a, b = sorted(set(names), key=place.__getitem__)
    return a, b


def _link(tests: list[Measurement], finding: str) -> LinkRate:
    outcomes = [test.outcome for test in tests]
    passed, failed, void = (outcomes.count(word) for word in ("passed", "failed", "void"))
    timed = (test.gigabytes_per_second for test in tests if test.outcome == "passed")
    best = max((rate for rate in timed if rate is not None), default=None)
    return LinkRate(best, passed, failed, void, finding)


def _node(links: Iterable[LinkRate], products: Iterable[Measurement]) -> NodeRate:
    links = list(links)
    timed = sorted((link.rate for link in links if link.rate is not None), reverse=True)
    rate = timed[(len(timed) - 1) // 3] if timed else None
    failed = sum(link.failed for link in links)
    tests = failed + sum(link.passed for link in links)
    return NodeRate(rate, min((product.seconds for product in products), default=None), tests, failed)


def _median(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None
