"""Ranks wait for each other in calls of several groups: their calls are not in one order.

Odd is the only rank that departed from its own order; else the ranks that are not where most are. A script
may take groups in an order that depends on data, so the majority proves little.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.habits import departures
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.vote import RankVote, one_only

CERTAINTY = 30


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_crossed:
        return []
    departures_by_rank = {wait.rank: departures(table, wait) for wait in table.waits}
    departed = one_only(rank for rank, departure in departures_by_rank.items() if departure)
    is_whole = len(table.waits) == table.size and None not in departures_by_rank.values()
    if departed >= 0 and is_whole:
        facts = {"departure": departures_by_rank[departed]}
        return [Hypothesis("order of groups", CERTAINTY, (departed,), facts)]
    vote = RankVote({wait.rank: (wait.group, wait.sequence) for wait in table.waits})
    return [Hypothesis("order of groups", CERTAINTY, vote.odd, {"departure": ()})]
