"""Find slow rails: the ways between GPUs of the same local rank on different nodes.

A slow rail changes the sum over all rails of a node by a few percent only. The rails are therefore compared
one by one, each with all other rails of the set.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model.frozen import frozen
from clusterrun.preflight.thresholds import Outlier, Thresholds, outliers

# (sending node, receiving node, local rank): GB/s
RailRates = Mapping[tuple[int, int, int], float]


@frozen
class SlowRail:
    """A rail of ``node`` that is slow in one direction, or of a link if ``partner`` is set."""

    node: int
    rail: int
    is_sending: bool
    outlier: Outlier
    partner: int | None = None  # the only node that it was measured with, which may be at fault as well


def slow_rails(rates: RailRates, thresholds: Thresholds) -> list[SlowRail]:
    """Return the slow rails. The best rate with any partner counts: a slow partner blames no other node.

    If all rails of a node are slow, none is returned: tests of pairs report the node.
    """
    rails_of_node: dict[int, set[int]] = {}
    partners: dict[tuple[int, int, bool], set[int]] = {}
    best: dict[tuple[int, int, bool], float] = {}
    for (source, target, rail), rate in rates.items():
        for node, other_end, is_sending in ((source, target, True), (target, source, False)):
            end = (node, rail, is_sending)
            rails_of_node.setdefault(node, set()).add(rail)
            partners.setdefault(end, set()).add(other_end)
            best[end] = max(rate, best.get(end, 0.0))
    slow_ends = outliers(best, thresholds)
    result: list[SlowRail] = []
    for (node, rail, is_sending), outlier in sorted(slow_ends.items()):
        count = len(rails_of_node[node])
        slow_count = sum((node, other, is_sending) in slow_ends for other in rails_of_node[node])
        if count < 2 or 2 * slow_count > count:
            continue
        others = partners[node, rail, is_sending]
        partner: int | None = next(iter(others)) if len(others) == 1 else None
        if partner is not None and len(partners[partner, rail, not is_sending]) > 1:
            # The partner has other partners: its own best rate tells whether the partner is slow.
            if (partner, rail, not is_sending) in slow_ends:
                continue
            partner = None
        if partner is None or is_sending:  # a way between two nodes has one sender
            result.append(SlowRail(node, rail, is_sending, outlier, partner))
    return result
