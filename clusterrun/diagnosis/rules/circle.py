"""Ranks wait for each other in a circle of sends and receives.

If all send, or all receive, their order is wrong. Otherwise any of them may name a wrong peer.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis

CERTAINTY = 44


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_crossed:
        return []
    peers = {wait.rank: wait.peer for wait in table.waits if wait.missing and wait.peer >= 0}
    for start in sorted(peers):
        circle: list[int] = []
        rank = start
        while rank in peers and rank not in circle:
            circle.append(rank)
            rank = peers[rank]
        if len(circle) > 1 and rank == start:
            same_call = len({table.of(rank).call.name for rank in circle}) == 1
            is_part = len(circle) < table.size
            culprits = tuple(sorted(circle)) if same_call and is_part else ()
            return [Hypothesis("circle", CERTAINTY, culprits, {"circle": tuple(circle)})]
    return []
