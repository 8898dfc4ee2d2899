"""Compare the losses of a restart with those of undisturbed runs that differ by themselves; pure."""

from __future__ import annotations

import math
import statistics

from clusterrun.model.frozen import frozen
from clusterrun.rehearse.rank_trace import Start

# Steps after a restart that are compared. A state that was not restored shows within them.
COMPARED_STEPS = 12
# Fewest losses that are compared.
LEAST_LOSSES = 4
# A restart's losses differ if their distance from undisturbed runs exceeds this many times the distance
# between the undisturbed runs,
SPREAD_TIMES = 4.0
# and this share of the loss itself, because two runs may be close by chance.
SPREAD_SHARE = 0.05


@frozen
class LossComparison:
    have_parted: bool  # whether the losses differ by more than the undisturbed runs do
    sentence: str  # '' if too few losses can be compared


def compare_losses(first: Start, second: Start, restart: Start, resumed_at: int) -> LossComparison:
    """Compare the losses of ``restart``, which continues after ``resumed_at``, with two undisturbed runs."""
    first_losses, second_losses = _losses(first), _losses(second)
    undisturbed = {
        place: (first_losses[place], second_losses[place])
        for place in first_losses.keys() & second_losses.keys()
    }
    spread, distances, levels, steps = [], [], [], set()
    for (rank, number), loss in _losses(restart).items():
        pair = undisturbed.get((rank, resumed_at + number))
        if pair and number <= COMPARED_STEPS:
            spread.append(abs(pair[0] - pair[1]))
            distances.append(min(abs(loss - other) for other in pair))
            levels.append(abs(sum(pair)) / 2)
            steps.add(number)
    if len(steps) < LEAST_LOSSES:
        return LossComparison(False, "")
    everywhere = [abs(loss - other) for loss, other in undisturbed.values()]
    usual_spread = max(statistics.median(spread), statistics.median(everywhere))
    distance = statistics.median(distances)
    if distance <= SPREAD_TIMES * usual_spread:
        limit = f"{SPREAD_TIMES:g} times the spread of undisturbed runs"
        return LossComparison(False, f"{len(steps)} losses are within {limit}")
    if distance <= SPREAD_SHARE * statistics.median(levels):
        return LossComparison(False, f"{len(steps)} losses are within {SPREAD_SHARE:.0%} of undisturbed runs")
    message = f"the losses of {len(steps)} steps lie {distance:.3g} from those of the undisturbed runs, which"
    return LossComparison(True, f"{message} lie {usual_spread:.3g} apart")


def _losses(life: Start) -> dict[tuple[int, int], float]:
    """Return the finite losses by rank and step."""
    steps = [(rank, step.n, step.loss) for rank, trace in life.ranks.items() for step in trace.steps]
    return {(rank, number): loss for rank, number, loss in steps if loss is not None and math.isfinite(loss)}
