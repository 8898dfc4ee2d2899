"""Every rank waits for the others, and their stacks show different calls. There is no other evidence.

The fewer ranks are odd if all calls are of the default group. One rank is odd against all others in one call
of any group: a group without it would not wait. A send, a receive or a store call has two ends, so
nobody is blamed for these.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stacks import GPU_WAIT, SOME_WAIT, STORE_WAIT, Doing
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import MORE_IS_SEEN, MOST_LINES, blame, verb_s

CERTAINTY = 55
# A store call, and a wait whose native frames do not tell a collective from a receive.
TWO_ENDED = (STORE_WAIT, SOME_WAIT)


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
    if vote.is_unanimous or any(waits[rank].operation == GPU_WAIT for rank in living):
        return []
    sides = [(waits[ranks[0]], ranks) for _, ranks in vote.sides]
    # Calls that are known to take all ranks.
    is_known = all(
        waits[rank.rank].peer < 0 and (rank.call.is_of_all or rank.location.doing is Doing.RENDEZVOUS)
        for rank in table.living
    )
    lone = vote.lone()
    if lone >= 0 and all(waits[rank].peer < 0 for rank in living):
        is_known = waits[lone].operation not in TWO_ENDED
    return [Hypothesis("different places", CERTAINTY, vote.odd if is_known else (), {"sides": sides})]


def explain_different_places(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sides: list[tuple[Call, tuple[int, ...]]] = hypothesis.facts["sides"]
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
        if rank in hypothesis.culprits
    }
    if not whys:
        sentence += ": stacks alone do not show which of them is wrong"
    remedy = (
        "let every rank call the same collectives in the same order: compare the conditions of these lines"
    )
    return blame(table, Verdict.MISMATCH, sentence, whys, f"{remedy}. {MORE_IS_SEEN}")


EXPLANATIONS = {"different places": explain_different_places}
