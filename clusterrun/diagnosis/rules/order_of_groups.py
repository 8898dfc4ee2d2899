"""Ranks wait for each other in calls of several groups: their calls are not in one order.

Odd is the only rank that departed from its own order; else the ranks that are not where most are. A script
may take groups in an order that depends on data, so the majority proves little.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.habits import Departure, departures
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote, one_only
from clusterrun.diagnosis.wording import at_place, blame

CERTAINTY = 30


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_crossed:
        return []
    departures_by_rank = {wait.rank: departures(table, wait) for wait in table.waits}
    departed = one_only(rank for rank, departure in departures_by_rank.items() if departure)
    is_whole = len(table.waits) == table.size and None not in departures_by_rank.values()
    if departed >= 0 and is_whole:
        explanation = partial(explain, departed=departures_by_rank[departed] or ())
        return [Hypothesis(explanation, CERTAINTY, (departed,))]
    vote = RankVote({wait.rank: (wait.group, wait.sequence) for wait in table.waits})
    return [Hypothesis(explain, CERTAINTY, vote.odd)]


def explain(table: CallTable, blamed: Ranks, departed: Sequence[Departure] = ()) -> Diagnosis:
    whys = {}
    sentence = (
        "ranks wait for each other in different groups or calls: their collectives are not in one order"
    )
    for rank in blamed:
        wait = table.wait_by_rank[rank]
        inside = f"it is in {wait.operation}{at_place(table, rank)}, without {ranks_in_words(wait.missing)}"
        for departure in departed:
            usual_groups = " or ".join(map(_of_group, departure.usual))
            how = f"it called {_of_group(departure.call)} after {_of_group(departure.before)}, where it had "
            how += f"always called {usual_groups}"
            sentence = f"rank {rank} on {table.of(rank).node} left the order of calls: {how}"
            inside = f"{how}; {inside}"
        whys[rank] = inside
    remedy = "let every rank call the collectives of all groups in the same order"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def _of_group(call: tuple[str, str]) -> str:
    return f"{call[1]} of group {call[0]}"
