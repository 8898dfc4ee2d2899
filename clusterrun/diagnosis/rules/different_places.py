"""Every rank waits for the others, and their stacks show different calls. There is no other evidence.

The fewer ranks are odd if they are in one call, the others in another, and both are of the default group.
The root of a broadcast waits in it for the odd rank, and others may have left it, so that call does not
count. One rank in a call of all ranks is odd against all others in one call of any group: a group without it
would not wait. If it is in a call of a smaller group, a member that left that call out may be odd instead.
If the ranks are in more than two calls, as in the loop of a library, the frames at which their stacks part
are compared instead. Nobody is blamed if a rank is in a send, a receive or a store call, which have two ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import LOCK, Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.stacks import BACKWARD, GPU_WAIT, MOST_FRAMES, STORE_WAIT, Doing, short
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
        if not odd:
            parted = RankVote(_parted(table))
            odd = _odd(table, [(waits[ranks[0]], ranks) for _, ranks in parted.sides])
    return [Hypothesis(partial(explain_different_places, sides=sides), CERTAINTY, odd)]


def _parted(table: CallTable) -> dict[int, str]:
    """Return of each living rank the outermost frame that not all of them share; {} if a stack is cut."""
    stacks = {rank.rank: rank.stacks.main[::-1] for rank in table.living}
    if max(map(len, stacks.values())) >= MOST_FRAMES:
        return {}
    for frames in zip(*stacks.values()):
        if len(set(frames)) > 1:
            return dict(zip(stacks, frames))
    return {}


def _odd(table: CallTable, sides: Sequence[tuple[Call, tuple[int, ...]]]) -> tuple[int, ...]:
    """Return the ranks that differ from the largest side, if the calls of the sides can be compared."""
    vote = RankVote({rank: index for index, (_, ranks) in enumerate(sides) for rank in ranks})
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
    # In the loop of a library all ranks are in one line of the script. The library's frames tell them apart.
    parted = _parted(table) if len({call.line for call, _ in sides}) == 1 else {}
    places = {}
    for call, ranks in sides:
        place = f"{call.operation} at {call.line}"
        if ranks[0] in parted:
            place += f" by way of {short(parted[ranks[0]])}"
        places[ranks] = place
    lines = [f"{ranks_in_words(ranks)} wait{verb_s(ranks)} in {place}" for ranks, place in places.items()]
    sentence = "ranks wait for each other in different calls: " + "; ".join(lines[:MOST_LINES])
    usual_wait = next(line for (_, ranks), line in zip(sides, lines) if not set(ranks) <= set(blamed))
    whys = {
        rank: f"it waits in {place}, where {usual_wait}"
        for ranks, place in places.items()
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
