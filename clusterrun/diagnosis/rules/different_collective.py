"""Ranks of a group made different calls at the same place, by their flight records.

Fooled if two threads use one process group (``two_threads.py`` outranks this rule), or if a rank calls a
collective in the handler of an exception. So the records of an ended run count only if the first error
came from a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import at_place, blame
from clusterrun.model.frozen import replace

CERTAINTY = 80


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.waits:
        return []
    sides = different_calls(table)
    if not sides:
        return []
    suspects = RankVote({rank: call.comparable for call, ranks in sides for rank in ranks}).suspects
    return [Hypothesis(partial(explain, sides=sides), CERTAINTY, suspects)]


def different_calls(table: CallTable) -> list[tuple[Call, tuple[int, ...]]]:
    """Return the first calls at which members of a group differ, and the ranks of each, the most first."""
    differing = []
    for calls in table.places().values():
        vote = RankVote({rank: call.comparable for rank, call in calls.items()})
        if not vote.is_unanimous:
            differing.append([(calls[ranks[0]], ranks) for _, ranks in vote.sides])
    return min(differing, key=lambda sides: min(call.at for call, _ in sides), default=[])


def explain(table: CallTable, blamed: Ranks, sides: Sequence[tuple[Call, Ranks]]) -> Diagnosis:
    lines = [
        f"{ranks_in_words(ranks)} called {call.arguments}{at_place(table, *ranks)}" for call, ranks in sides
    ]
    rest = "; ".join(f"{ranks_in_words(ranks)} {call.arguments}" for call, ranks in sides[1:])
    sentence = f"ranks called different collectives: {lines[0]}, {rest}"
    whys = {}
    for rank in (rank for _, ranks in sides for rank in ranks if rank in blamed):
        mine = next(call for call, ranks in sides if rank in ranks)
        other, others = next((call, ranks) for call, ranks in sides if rank not in ranks)
        where = f"where {ranks_in_words(others)} called {other.arguments}"
        whys[rank] = f"it called {mine.arguments}{at_place(table, rank)} {where}"
    remedy = "let every rank call the same collectives, in the same order, with equal shapes and types"
    where = replace(sides[0][0], operation="collective").title
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, [f"{where}: {line}" for line in lines])
