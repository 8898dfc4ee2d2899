"""What the rates of pairs say of nodes and links: a ledger whose question is "is it fast?"."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen
from clusterrun.preflight.ledger import Ledger
from clusterrun.preflight.limits import Limits, Line, line
from clusterrun.preflight.pairing import Pair


@frozen
class Timed:
    """The rate of one test that passed, in GB/s; ``again``: of a test made to find out about a failure."""

    link: Pair
    rate: float
    again: bool


class Speed:
    """All rates, and the line between slow and fast that they draw.

    The line stands on each node's best rate: a slow node makes the rates of all its partners slow, but
    not the best of them, so that it holds while fewer than half of the nodes are slow.
    """

    def __init__(self, timed: Iterable[Timed], limits: Limits, ledger: Ledger) -> None:
        self.best: dict[int, float] = {}
        self.best_of: dict[Pair, float] = {}
        self.ledger = ledger
        self.times: dict[int, int] = {}
        self.times_of: dict[Pair, int] = {}
        tests = list(timed)
        for one in tests:
            self._best(one)
        quarter = sorted(self.best.values())[-(len(self.best) + 3) // 4 :]
        self._far = quarter[0] * (1 - limits.slow_few) if quarter else 0.0
        self.line = line(self.best.values(), limits, limits.pair_floor)
        for one in tests:
            self._judge(one, self.line)

    def behind(self) -> list[int]:
        """Nodes far below the fastest quarter, which may only have had slow partners."""
        return [node for node, rate in self.best.items() if rate < self._far]

    def leaders(self) -> list[int]:
        """The nodes that are not far behind, the fastest first."""
        return sorted(
            (node for node in self.best if self.best[node] >= self._far), key=lambda node: -self.best[node]
        )

    def _best(self, one: Timed) -> None:
        self.best_of[one.link] = max(one.rate, self.best_of.get(one.link, 0.0))
        self.times_of[one.link] = self.times_of.get(one.link, 0) + 1
        for node in (one.link.a, one.link.b):
            self.best[node] = max(one.rate, self.best.get(node, 0.0))
            self.times[node] = self.times.get(node, 0) + 1

    def _judge(self, one: Timed, drawn: Line | None) -> None:
        if drawn is None:
            return
        if one.rate < drawn.slow:
            self.ledger.note(one.link, False, one.again)
        elif one.rate >= drawn.clear:
            self.ledger.note(one.link, True, one.again)
