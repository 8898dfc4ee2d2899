"""Every rank waits for the others, and their stacks show different calls. There is no other evidence.

The fewer ranks are odd if they are in one call, the others in another, and both are of the default group.
The root of a broadcast waits in it for the odd rank, and others may have left it, so that call does not
count. One rank in a call of all ranks is odd against all others in one call of any group: a group without it
would not wait. If it is in a call of a smaller group, a member that left that call out may be odd instead. A
send, a receive or a store call has two ends, so nobody is blamed if any rank is in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import LOCK, Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.stacks import BACKWARD, GPU_WAIT, STORE_WAIT, Doing
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import MORE_IS_SEEN, MOST_LINES, blame, verb_s

CERTAINTY = 55


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.by_stacks or not table.is_long_still:
        return []
    waits = table.wait_by_rank
    living = [rank.rank for rank in table.living]
    if len(waits) < len(living) or any(not table.location(rank).line for rank in living):
        return []
    if table.awaited.difference(table.by_rank):
        return []  # ranks of nodes that did not answer
    vote = RankVote({rank: (waits[rank].operation, waits[rank].line) for rank in living})
    if vote.is_unanimous or any(waits[rank].operation in (GPU_WAIT, LOCK) for rank in living):
        return []
    sides = [(waits[ranks[0]], ranks) for _, ranks in vote.sides]
    odd: tuple[int, ...] = ()
    if not any(call.peer >= 0 or call.operation == STORE_WAIT for call, _ in sides):
        odd = _odd(table, sides)
        if not odd:
            odd = _odd(table, [(call, ranks) for call, ranks in sides if call.root not in ranks])
    return [Hypothesis(partial(explain_different_places, sides=sides), CERTAINTY, odd)]


def _odd(table: CallTable, sides: Sequence[tuple[Call, tuple[int, ...]]]) -> tuple[int, ...]:
    """Return the ranks that differ from the largest side, if the calls of the sides can be compared."""
    vote = RankVote({rank: place for place, (_, ranks) in enumerate(sides) for rank in ranks})
    known_of_all = [
        rank
        for _, ranks in sides
        for rank in ranks
        if table.of(rank).call.is_of_all or table.location(rank).doing is Doing.RENDEZVOUS
    ]
    is_known = len(sides) == 2 and len(known_of_all) == sum(len(ranks) for _, ranks in sides)
    lone = vote.lone()
    if lone >= 0:
        is_known = lone in known_of_all or table.wait_by_rank[lone].operation == BACKWARD
    return vote.odd if is_known else ()


def explain_different_places(
    table: CallTable, blamed: Ranks, sides: Sequence[tuple[Call, Ranks]]
) -> Diagnosis:
    lines = []
    for call, ranks in sides[:MOST_LINES]:
        lines.append(f"{ranks_in_words(ranks)} wait{verb_s(ranks)} in {call.operation} at {call.line}")
    sentence = "ranks wait for each other in different calls: " + "; ".join(lines)
    usual_call, usual_ranks = sides[0]
    usual = f"{ranks_in_words(usual_ranks)} wait{verb_s(usual_ranks)} in "
    usual += f"{usual_call.operation} at {usual_call.line}"
    whys = {
        rank: f"it waits in {call.operation} at {call.line}, where {usual}"
        for call, ranks in sides[1:]
        for rank in ranks
        if rank in blamed
    }
    if not whys:
        sentence += ": stacks alone do not show which of them is wrong"
    remedy = (
        "let every rank call the same collectives in the same order: compare the conditions of these lines."
    )
    stored = [call.line for call, _ in sides if call.operation == STORE_WAIT]
    if stored:
        remedy = f"which rank sets the key that {stored[0]} waits for, under which name and condition?"
    return blame(table, Verdict.MISMATCH, sentence, whys, f"{remedy} {MORE_IS_SEEN}")
