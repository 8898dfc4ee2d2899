"""No rank is in a known call, and nothing moves: the ranks wait for something outside of torch, or compute.

A rank that waits for its GPU looks busy, and without records nothing distinguishes it from one that computes.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import STOPPED, CallTable
from clusterrun.diagnosis.evidence import START_PATIENCE, RankSnapshot
from clusterrun.diagnosis.explain_rank import has_ended
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stacks import Doing, joins_processes, location, works_for_a_loader
from clusterrun.diagnosis.vote import RankVote

CERTAINTY = 10
TOGETHER = (Doing.COLLECTIVE, Doing.RENDEZVOUS)


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or table.waits:
        return []
    doing = {rank.location.doing for rank in table.ranks}
    if len(doing) == 1 and doing <= set(TOGETHER):
        return [Hypothesis("met in vain", CERTAINTY, final=table.is_long_still)]
    busy = tuple(rank.rank for rank in table.ranks if rank.works)
    if busy and table.stalled and any(table.of(rank).may_spin for rank in busy):
        return [Hypothesis("busy without progress", CERTAINTY, facts={"busy": busy})]
    if busy:
        return [Hypothesis("computing", CERTAINTY, facts={"busy": busy}, final=bool(table.stalled))]
    if not table.ranks:
        return [Hypothesis("nothing seen", CERTAINTY)]
    if not table.is_long_still:
        return [Hypothesis("pause", CERTAINTY, final=False)]
    living = table.living
    if not living:
        return [Hypothesis("outlived" if table.stalled >= START_PATIENCE else "ending", CERTAINTY)]
    if all(has_ended(rank) for rank in living):
        culprits = tuple(rank.rank for rank in living)
        return [Hypothesis("never arrived", CERTAINTY, culprits, {"late_too": ()})]
    if all(_stands_for_others(rank) for rank in living):
        return _below(living)
    alone = RankVote({rank.rank: rank.location.line for rank in living})
    is_known = alone.lone() >= 0 and all(line for line, _ in alone.sides)
    return [Hypothesis("waiting outside", CERTAINTY, facts={"sides": alone.sides if is_known else []})]


def _stands_for_others(rank: RankSnapshot) -> bool:
    """Whether it waits for processes that it started, as far as its stack shows."""
    is_unknown = rank.location.doing is Doing.UNKNOWN
    return (
        bool(rank.process.children)
        and not rank.answered
        and (is_unknown or joins_processes(rank.stacks.main))
    )


def _below(living: list[RankSnapshot]) -> list[Hypothesis]:
    """The processes that ranks started are the ranks of torch. Only py-spy shows their stacks."""
    pairs = [
        (rank, child)
        for rank in living
        for child in rank.process.children
        if not works_for_a_loader(child.stack)
    ]
    inside = [pair for pair in pairs if location(pair[1].stack).doing in TOGETHER]
    late = [
        pair
        for pair in pairs
        if pair[1].stack and location(pair[1].stack).doing not in TOGETHER and location(pair[1].stack).frame
    ]
    late += [pair for pair in pairs if pair[1].state in STOPPED]
    if not inside or not late:
        return [Hypothesis("unknown processes", CERTAINTY)]
    return [Hypothesis("late process", CERTAINTY, facts={"inside": inside, "late": late})]
