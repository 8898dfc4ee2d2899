"""Judge by the rates of pair tests whether a pair is fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.pairs import Answers, Link, PairTest
from clusterrun.preflight.thresholds import MINORITY, NORMAL, SlowLine, Thresholds, line, median_of

Distance = Callable[[Link], int]


def same_distance(link: Link) -> int:
    """Return level 0 for every link, since the switches are unknown."""
    return 0


def distances(addresses: Mapping[int, str]) -> Distance:
    """Return how many levels of switches a link crosses; 0 if the switches are unknown.

    ``addresses``: ``SLURM_TOPOLOGY_ADDR`` by node. ``spine.leaf3.n7`` has two switches above it.
    """
    switches = {node: address.split(".")[:-1] for node, address in addresses.items()}

    def distance(link: Link) -> int:
        a, b = switches[link[0]], switches[link[1]]
        if not a or not b:
            return 0
        differing = (level for level, (mine, other) in enumerate(zip(a, b)) if mine != other)
        common = next(differing, min(len(a), len(b)))
        return max(len(a), len(b)) - common

    return distance


@frozen
class LinkDistance:
    levels: int  # of switches that the links cross
    links: int  # how many were timed
    median: float  # of their best rates, in GB/s
    factor: float  # makes the rates comparable with those of the fastest level; 1 if it is as fast


def link_levels(best: Mapping[Link, float], distance: Distance, slower: float) -> dict[int, LinkDistance]:
    """Return the links by level; ``slower``: a level that much below the fastest has a factor."""
    rates: dict[int, list[float]] = {}
    for link, rate in best.items():
        rates.setdefault(distance(link), []).append(rate)
    medians = {level: median_of(values) for level, values in rates.items()}
    fastest = max(medians.values(), default=0.0)
    result = {}
    for level in sorted(medians):
        median = medians[level]
        is_slower = 0 < median < fastest * (1 - slower)
        factor = fastest / median if is_slower else 1.0
        result[level] = LinkDistance(level, len(rates[level]), median, factor)
    return result


class PairRates:
    """The rates of good tests, and the line between slow and fast.

    The line is drawn by what each node reaches in a third of its tests. A slow partner or link lowers only
    some rates of a node. The best rate of all would grow with the number of tests. Retests of a slow node do
    not count against its partners.

    Links over more switches may all be slower. Their rates are multiplied by the factor of their level, so
    that a link is compared with links of its level.
    """

    def __init__(
        self, log: Iterable[PairTest], thresholds: Thresholds, distance: Distance = same_distance
    ) -> None:
        self.thresholds, self._distance = thresholds, distance
        tests = []
        best: dict[Link, float] = {}
        for test in log:
            rate = test.outcome.rate
            if test.is_good and rate is not None and math.isfinite(rate):
                tests.append(test)
                best[test.link] = max(rate, best.get(test.link, 0.0))
        self.levels = link_levels(best, distance, thresholds.slow_warn)
        rated = [(test, test.outcome.rate * self.factor(test.link)) for test in tests]
        self.of_link: dict[Link, list[float]] = {}
        for test, rate in rated:
            self.of_link.setdefault(test.link, []).append(rate)
        self.of_node = _rates_by_node(rated)
        planned = [(test, rate) for test, rate in rated if not test.is_retest] or rated
        of_planned = _rates_by_node(planned)
        self._usual = {
            node: max(_upper_third(rates), _upper_third(of_planned.get(node, rates)))
            for node, rates in self.of_node.items()
        }
        fastest = sorted(self._usual.values())[-((len(self._usual) + MINORITY - 1) // MINORITY) :]
        self._far = fastest[0] * (1 - thresholds.slow_few) if fastest else 0.0
        # The standard deviation of a measurement is how much a test differs from the usual rates of its
        # nodes.
        gaps = [abs(rate - min(self._usual[node] for node in test.link)) for test, rate in planned]
        noise = NORMAL * median_of(gaps) if gaps else 0.0
        speed_line = line(self._usual.values(), self.thresholds, self.thresholds.pair_floor, noise)
        self.line = speed_line or SlowLine(0.0, 0.0, 0.0)
        self.answers = Answers(thresholds.noise)
        # A rate between the two lines is no answer.
        answers = []
        for test, rate in rated:
            is_fast, is_slow = rate >= self.line.clear, rate < self.line.slow and not test.outcome.starved
            if is_fast or is_slow:
                answers.append((test.link, is_fast, test.is_retest))
        self.answers.note(answers)

    def factor(self, link: Link) -> float:
        return self.levels[self._distance(link)].factor

    def is_slow(self, nodes: Sequence[int]) -> bool:
        """Return whether no test of the node or link reached the slow line."""
        rates = self.of_node[nodes[0]] if len(nodes) == 1 else self.of_link[nodes[0], nodes[1]]
        return max(rates) < self.line.slow

    def behind(self) -> list[int]:
        """Return the nodes far below the fastest third. They may only have had slow partners."""
        return [node for node, rate in self._usual.items() if rate < self._far]

    def leaders(self) -> list[int]:
        """Return the nodes that are not far behind, the fastest first."""
        fast = [node for node, rate in self._usual.items() if rate >= self._far]
        return sorted(fast, key=lambda node: -self._usual[node])


def _rates_by_node(rated: Iterable[tuple[PairTest, float]]) -> dict[int, list[float]]:
    rates: dict[int, list[float]] = {}
    for test, rate in rated:
        for node in test.link:
            rates.setdefault(node, []).append(rate)
    return rates


def _upper_third(rates: list[float]) -> float:
    """Return the rate that a third of the tests reach; the best of up to three."""
    return sorted(rates, reverse=True)[(len(rates) - 1) // MINORITY]
