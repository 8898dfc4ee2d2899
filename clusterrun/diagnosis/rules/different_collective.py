"""Ranks of a group made different calls at the same place, by their flight records.

Fooled if two threads use one process group (``two_threads.py`` outranks this rule), or if a rank calls a
collective in the handler of an exception. So the records of an ended run count only if the first error
came from a collective.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.vote import RankVote

CERTAINTY = 80


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.waits:
        return []
    sides = different_calls(table)
    if not sides:
        return []
    suspects = RankVote({rank: call.comparable for call, ranks in sides for rank in ranks}).suspects
    return [Hypothesis("different collectives", CERTAINTY, suspects, {"sides": sides})]


def different_calls(table: CallTable) -> list[tuple[Call, tuple[int, ...]]]:
    """The first place, in time, at which members of a group differ: a call and its ranks, the most first."""
    differing = []
    for calls in table.places().values():
        vote = RankVote({rank: call.comparable for rank, call in calls.items()})
        if not vote.is_unanimous:
            differing.append([(calls[ranks[0]], ranks) for _, ranks in vote.sides])
    return min(differing, key=lambda sides: min(call.at for call, _ in sides), default=[])
