"""The ranks move: no hang, though perhaps one rank is slow.

A rank that prints while others wait for it counts as moving, and may print the same retry for ever.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stragglers import find_straggler

CERTAINTY = 90


def rule(table: CallTable) -> list[Hypothesis]:
    awaited = table.awaited
    working = [
        rank.rank
        for rank in table.ranks
        if rank.moved or (rank.printed and (not table.waits or rank.rank in awaited))
    ]
    if table.end or table.stalled or not working:
        return []
    straggler = find_straggler(table)
    if straggler:
        facts = {"straggler": straggler}
        return [Hypothesis("slow rank", CERTAINTY, (straggler.rank,), facts)]
    printing = tuple(working) if awaited and not any(rank.moved for rank in table.ranks) else ()
    return [Hypothesis("progress", CERTAINTY, facts={"printing": printing}, final=not awaited)]
