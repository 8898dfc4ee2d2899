"""Losses after a restart against the spread of undisturbed runs, where these differ by themselves; pure."""

from __future__ import annotations

import math
import statistics

from clusterrun.model.frozen import frozen
from clusterrun.rehearse.rank_trace import Start

LOOKED_AT = 12
"""Steps after a restart: what was not restored shows there, if anywhere."""
LEAST = 4
"""Losses below which nothing is said."""
TIMES = 4.0
"""How much farther than undisturbed runs from each other a restart's losses must lie to be said to part."""
SHARE = 0.05
"""The share of the loss itself that they must lie apart too: two runs may happen to lie close together."""


@frozen
class LossSpread:
    """Medians over steps: how far the restart's losses lie from those of two undisturbed runs (``own``), how
    far these lie apart (``undisturbed``), and how large they are (``level``).
    """

    own: float
    undisturbed: float
    level: float
    steps: int

    @property
    def parted(self) -> bool:
        """Whether no spread of undisturbed runs explains it."""
        return self.own > max(TIMES * self.undisturbed, SHARE * self.level)

    def __str__(self) -> str:
        if self.parted:
            return (
                f"the losses of {self.steps} steps lie {self.own:.3g} from those of the undisturbed runs,"
                f" which lie {self.undisturbed:.3g} apart"
            )
        spread = f"{TIMES:g} times the spread of undisturbed runs"
        within = spread if self.own <= TIMES * self.undisturbed else f"{SHARE:.0%} of undisturbed runs"
        return f"{self.steps} losses are within {within}"


def spread(first: Start, second: Start, last: Start, at: int) -> LossSpread | None:
    """The losses of ``last``, which continues after step ``at``; None if too few can be compared."""
    one, two = _losses(first), _losses(second)
    undisturbed = {place: (one[place], two[place]) for place in one.keys() & two.keys()}
    everywhere = [abs(loss - other) for loss, other in undisturbed.values()]
    here, own, level, steps = [], [], [], set()
    for (rank, n), loss in _losses(last).items():
        pair = undisturbed.get((rank, at + n))
        if pair and n <= LOOKED_AT:
            here.append(abs(pair[0] - pair[1]))
            own.append(min(abs(loss - other) for other in pair))
            level.append(abs(sum(pair)) / 2)
            steps.add(n)
    if len(steps) < LEAST:
        return None
    between = max(map(statistics.median, (here, everywhere)))
    return LossSpread(statistics.median(own), between, statistics.median(level), len(steps))


def _losses(life: Start) -> dict[tuple[int, int], float]:
    """By rank and step."""
    steps = [(rank, step) for rank, trace in life.ranks.items() for step in trace.steps]
    return {
        (rank, one.n): one.loss for rank, one in steps if one.loss is not None and math.isfinite(one.loss)
    }
