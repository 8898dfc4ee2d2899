"""Ranks wait for each other in a circle of sends and receives.

If all send, or all receive, their order is wrong. Otherwise any of them may name a wrong peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import MOST_LINES, at_place, blame, to_peer

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
            return [Hypothesis(partial(explain, circle=circle), CERTAINTY, culprits)]
    return []


def explain(table: CallTable, blamed: Ranks, circle: Sequence[int]) -> Diagnosis:
    steps = {}
    for rank in circle:
        call = table.of(rank).call
        steps[rank] = (
            f"{call.name.replace('recv', 'receive')}s {to_peer(call, call.name)}{at_place(table, rank)}"
        )
    listing = ", ".join(f"rank {rank} {step}" for rank, step in list(steps.items())[:MOST_LINES])
    listing += " and so on" if len(steps) > MOST_LINES else ""
    calls = {table.of(rank).call.name for rank in circle}
    subject = ranks_in_words(circle)
    if len(calls) > 1:
        sentence = f"{subject} wait for each other in sends and receives: {listing}; "
        sentence += "nothing shows which of them is wrong"
        remedy = "let each send name as dst who receives it, and each recv as src who sends it"
        return blame(table, Verdict.MISMATCH, sentence, {}, remedy)
    first, second = ("send", "receive") if calls == {"send"} else ("receive", "send")
    sentence = f"{subject} wait for each other: each {first}s before it {second}s: {listing}"
    remedy = f"let one of each two {second} first, or begin both with batch_isend_irecv"
    whys = {rank: f"it {steps[rank]}" for rank in blamed}
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy)
