"""The ranks move: no hang, though perhaps one rank is slow, or their results are wrong.

A rank that prints while others wait for it counts as moving, and may print the same retry for ever.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.rules.different_sizes import size_in_bytes
from clusterrun.diagnosis.stragglers import find_straggler
from clusterrun.diagnosis.vote import RankVote

CERTAINTY = 90
# Every rank must bring the same number of elements to these. NCCL does not compare them.
_ONE_SIZE = ("all_reduce", "reduce", "broadcast")


def rule(table: CallTable) -> list[Hypothesis]:
    awaited = table.awaited
    working = [
        rank.rank
        for rank in table.ranks
        if rank.moved or (rank.printed and (not table.waits or rank.rank in awaited))
    ]
    if table.end or table.stalled or not working:
        return []
    sides = _passed_with_different_sizes(table)
    if sides:
        suspects = RankVote({rank: call.shape for call, ranks in sides for rank in ranks}).suspects
        return [Hypothesis("different sizes passed", CERTAINTY, suspects, {"sides": sides})]
    straggler = find_straggler(table)
    if straggler:
        facts = {"straggler": straggler}
        return [Hypothesis("slow rank", CERTAINTY, (straggler.rank,), facts)]
    printing = tuple(working) if awaited and not any(rank.moved for rank in table.ranks) else ()
    return [Hypothesis("progress", CERTAINTY, facts={"printing": printing}, final=not awaited)]


def _passed_with_different_sizes(table: CallTable) -> list[tuple[Call, tuple[int, ...]]]:
    """Return the first call that ranks have left though they brought different sizes: a call and its ranks.

    Small messages of different sizes fit one buffer of NCCL. Then no rank waits, and the results are wrong.
    """
    differing = []
    for (_, members, _), calls in table.places().items():
        passed = {rank: call for rank, call in calls.items() if call.done and call.operation in _ONE_SIZE}
        is_one_operation = len({call.operation for call in passed.values()}) == 1
        vote = RankVote({rank: (size_in_bytes(call), call.types) for rank, call in passed.items()})
        if members and is_one_operation and not vote.is_unanimous:
            differing.append([(passed[ranks[0]], ranks) for _, ranks in vote.sides])
    return min(differing, key=lambda sides: min(call.at for call, _ in sides), default=[])
