"""A rank waits in a send or receive for a rank that has never made any, while another rank waits for it.

Both ends make no more sends and receives than ever. Fooled if the other rank is about to begin to send.
"""

from __future__ import annotations

from functools import partial

from clusterrun.diagnosis.calls import Call, CallTable, sends
from clusterrun.diagnosis.habits import departs
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.diagnosis.wording import at_place, blame

CERTAINTY = 43


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_crossed:
        return []
    usual_waits = {
        wait.rank: wait for wait in table.waits if not wait.sequence and departs(table, wait) is False
    }
    for wait in usual_waits.values():
        rank, peer = table.of(wait.rank), table.by_rank.get(wait.peer)
        mates = [
            mate
            for mate in map(table.of, usual_waits)
            if mate.call.peer == rank.rank and mate is not rank and mate is not peer
        ]
        mates = [mate for mate in mates if {rank.call.name, mate.call.name} == {"send", "recv"}]
        if len(mates) == 1 and peer and peer.answered and not sends(peer):
            explanation = partial(explain, wait=wait, mate=usual_waits[mates[0].rank])
            return [Hypothesis(explanation, CERTAINTY, (rank.rank,))]
    return []


def explain(table: CallTable, blamed: Ranks, wait: Call, mate: Call) -> Diagnosis:
    why = f"it waits in {wait.named}{at_place(table, wait.rank)}, which has never sent or received; "
    why += f"rank {mate.rank} waits for it in {mate.named}{at_place(table, mate.rank)}"
    node = table.of(wait.rank).node
    sentence = f"rank {wait.rank} on {node} names another rank than the one that it meets: {why}"
    remedy = "let each send name as dst who receives it, and each recv as src who sends it"
    return blame(table, Verdict.MISMATCH, sentence, {wait.rank: why}, remedy)
