"""What the rates of pairs say of nodes and links: a ledger whose question is "is it fast?"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.model.frozen import frozen, replace
from clusterrun.preflight.search.blame import Blame
from clusterrun.preflight.search.schedule import Pair
from clusterrun.preflight.thresholds import NORMAL, SlowLine, Thresholds, line, median_of

Distance = Callable[[Pair], int]


# --- links of different kinds, by how many switches are between their ends ---


def same(link: Pair) -> int:
    """All links are alike: nothing is known of the switches."""
    return 0


def switches(address: str) -> tuple[str, ...]:
    """The switches above a node, the topmost first, from ``SLURM_TOPOLOGY_ADDR`` (``spine.leaf3.n0007``)."""
    return tuple(address.split(".")[:-1])


def levels(one: Sequence[str], other: Sequence[str]) -> int:
    """How many levels two nodes must go up to meet; 0 under one switch, or where either is not known."""
    if not one or not other:
        return 0
    apart = (level for level, (mine, its) in enumerate(zip(one, other)) if mine != its)
    common = next(apart, min(len(one), len(other)))
    return max(len(one), len(other)) - common


@frozen
class LinkDistance:
    """Links over so many levels: how many were timed, the median of their best rates in GB/s.

    ``factor`` makes its rates comparable with those of the fastest kind; 1 where it is as fast.
    """

    levels: int
    links: int
    median: float
    factor: float


def kinds_of(best: Mapping[Pair, float], distance: Distance, slower: float) -> dict[int, LinkDistance]:
    """Each kind by its levels; ``slower`` is the share from which on it counts as slower than the fastest."""
    rates: dict[int, list[float]] = {}
    for link, rate in best.items():
        rates.setdefault(distance(link), []).append(rate)
    medians = {kind: median_of(known) for kind, known in rates.items()}
    fastest = max(medians.values(), default=0.0)
    limit = fastest * (1 - slower)
    factors = {kind: fastest / median if 0 < median < limit else 1.0 for kind, median in medians.items()}
    return {one: LinkDistance(one, len(rates[one]), medians[one], factors[one]) for one in sorted(medians)}


# --- who is slow ---


@frozen
class TimedPair:
    """The rate of one test that passed, in GB/s; ``again``: of a test made to find out about a failure.

    ``starved``: its ends waited for processors, so that the link is at least so fast.
    """

    link: Pair
    rate: float
    again: bool
    starved: bool = False


class BandwidthBlame:
    """All rates, and the line between slow and fast that they draw.

    The line stands on what each node reaches in a third of its tests: a slow node or link makes the
    rates of others slow as well, but not the best third of them, while fewer than half are slow.
    The best of all would grow with the number of tests; and tests made to find out about a slow node
    do not count against its partners.

    Links over more switches may be slower, all of them: rates are of links of one kind (``distance``),
    made comparable, so that a link is compared with its like.
    """

    def __init__(
        self, timed: Iterable[TimedPair], limits: Thresholds, ledger: Blame, distance: Distance = same
    ) -> None:
        self.ledger, self.limits = ledger, limits
        self._distance = distance
        tests = list(timed)
        best: dict[Pair, float] = {}
        for one in tests:
            best[one.link] = max(one.rate, best.get(one.link, 0.0))
        self.kinds = kinds_of(best, distance, limits.slow_warn)
        self.of_node: dict[int, list[float]] = {}
        self.of_link: dict[Pair, list[float]] = {}
        if any(kind.factor > 1 for kind in self.kinds.values()):  # copies cost, with all pairs of 1,250 nodes
            tests = [replace(one, rate=one.rate * self.factor(one.link)) for one in tests]
        planned: dict[int, list[float]] = {}
        for one in tests:
            self.of_link.setdefault(one.link, []).append(one.rate)
            for node in one.link:
                self.of_node.setdefault(node, []).append(one.rate)
                if not one.again:
                    planned.setdefault(node, []).append(one.rate)
        self._usual = {
            node: max(map(_upper_third, filter(None, (rates, planned.get(node)))))
            for node, rates in self.of_node.items()
        }
        fastest = sorted(self._usual.values())[-(len(self._usual) + 3) // 4 :]
        self._far = fastest[0] * (1 - limits.slow_few) if fastest else 0.0
        # By how much a test differs from what its nodes reach: one standard deviation.
        first = [one for one in tests if not one.again] or tests
        gaps = [abs(one.rate - min(self._usual[node] for node in one.link)) for one in first]
        noise = NORMAL * median_of(gaps) if gaps else 0.0
        drawn = line(self._usual.values(), limits, limits.pair_floor, noise)
        self.line = drawn or SlowLine(0.0, 0.0, 0.0)  # where nothing was timed
        self._note(tests)
        ledger.allow_for_chance(limits, max(len(self.of_node), len(self.of_link)))
        self.unsure = {node for node in ledger.suspects() if max(self.of_node[node]) >= self.line.slow}
        """Slow with some, and with somebody neither slow nor surely fast: they are not blamed."""

    def _note(self, tests: list[TimedPair]) -> None:
        for one in tests:
            fast = one.rate >= self.line.clear
            if fast or (one.rate < self.line.slow and not one.starved):
                self.ledger.note(one.link, fast, one.again)

    def factor(self, link: Pair) -> float:
        """What makes the rates of a link comparable with those of the fastest kind of links."""
        return self.kinds[self._distance(link)].factor

    def behind(self) -> list[int]:
        """Nodes far below the fastest quarter, which may only have had slow partners."""
        return [node for node, rate in self._usual.items() if rate < self._far]

    def leaders(self) -> list[int]:
        """The nodes that are not far behind, the fastest first."""
        fast = (node for node, rate in self._usual.items() if rate >= self._far)
        return sorted(fast, key=lambda node: -self._usual[node])


def _upper_third(rates: list[float]) -> float:
    """What a third of the rates reach; the best of up to three."""
    return sorted(rates, reverse=True)[(len(rates) - 1) // 3]
