"""A rank waits in a send or receive for a rank that has never made any, while another rank waits for it.

Both ends make no more sends and receives than ever. Fooled if the other rank is about to begin to send.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable, sends
from clusterrun.diagnosis.habits import departs
from clusterrun.diagnosis.hypothesis import Hypothesis

CERTAINTY = 43


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_crossed:
        return []
    usual = {wait.rank: wait for wait in table.waits if not wait.sequence and departs(table, wait) is False}
    for wait in usual.values():
        rank, peer = table.of(wait.rank), table.by_rank.get(wait.peer)
        mates = [
            mate
            for mate in map(table.of, usual)
            if mate.call.peer == rank.rank and mate is not rank and mate is not peer
        ]
        mates = [mate for mate in mates if {rank.call.name, mate.call.name} == {"send", "recv"}]
        if len(mates) == 1 and peer and peer.answered and not sends(peer):
            facts = {"wait": wait, "mate": usual[mates[0].rank]}
            return [Hypothesis("wrong peer", CERTAINTY, (rank.rank,), facts)]
    return []
