"""Every rank waits for the others, and their stacks show different calls. Nothing but stacks is known.

The fewer ranks are odd if all calls are of the default group. One rank is odd against all others in one call
of any group: a group without it would not wait. A send, a receive or a wait for the store has two ends, so
nobody is blamed for these.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stacks import GPU_WAIT, SOME_WAIT, STORE_WAIT, Doing
from clusterrun.diagnosis.vote import RankVote

CERTAINTY = 55
# A wait for the store, and one whose native frames do not tell a collective from a receive.
TWO_ENDED = (STORE_WAIT, SOME_WAIT)


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.by_stacks or not table.is_long_still:
        return []
    waits = table.wait_by_rank
    living = [rank.rank for rank in table.living]
    if len(waits) < len(living) or any(not table.location(rank).line for rank in living):
        return []
    if any(table.of(rank).state != "" and rank not in waits for rank in table.awaited):
        return []
    vote = RankVote({rank: (waits[rank].operation, waits[rank].line) for rank in living})
    if vote.is_unanimous or any(waits[rank].operation == GPU_WAIT for rank in living):
        return []
    sides = [(waits[ranks[0]], ranks) for _, ranks in vote.sides]
    is_known = all(_is_of_all(table, waits[rank]) for rank in living)
    lone = vote.lone()
    if lone >= 0 and all(waits[rank].peer < 0 for rank in living):
        is_known = waits[lone].operation not in TWO_ENDED
    return [Hypothesis("different places", CERTAINTY, vote.odd if is_known else (), {"sides": sides})]


def _is_of_all(table: CallTable, wait: Call) -> bool:
    """Whether a call is known to take all ranks."""
    rank = table.of(wait.rank)
    return wait.peer < 0 and (rank.call.is_of_all or rank.location.doing is Doing.RENDEZVOUS)
