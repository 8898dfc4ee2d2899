"""Find the slow rank of a job that makes progress: which comes last to collectives, and how late; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from clusterrun.diagnosis.calls import RECENT, CallTable
from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.stacks import is_out_of_data
from clusterrun.model.frozen import frozen

LEAST_COLLECTIVES = 16
LEAST_SECONDS = 0.3
# Share of the collectives that some rank waited for. A rank that comes last this often is no chance, if
# there are enough of them.
LAST_SHARE = 0.85
# The highest accepted chance that one of equal ranks comes last every time.
CHANCE = 1e-4
LEAST_WAITS = 5
LEAST_LOOKS = 4
FEW_WAITS = 2
# Share of the time spent waiting for one rank. Less is the noise of any job.
WAITED_SHARE = 0.15
# The same within a short time: on a crowded node one rank lags for a while, and then another.
SHORT_SECONDS = 5.0
SHORT_SHARE = 0.3
# Shorter waits do not count: within one node, and between nodes, whose clocks are not known better.
NEAR_SECONDS = 0.005
FAR_SECONDS = 0.03


@frozen
class Straggler:
    """``rank`` came last to ``last`` of ``of`` collectives. The others waited ``share`` of ``seconds``.

    If only stacks show the calls, these are looks, in which the others waited for it alone.
    """

    rank: int
    last: int
    of: int
    share: float
    seconds: float


def find_straggler(table: CallTable) -> Straggler | None:
    """Return the one rank that the others wait for.

    Ranks without data do not count: they wait for the others on purpose (torch's ``Join``).
    """
    if table.by_stacks:
        alone = Counter(ranks[0] for _, ranks in table.outside if len(ranks) == 1)
        for rank, count in alone.most_common(1):
            if count >= max(LEAST_LOOKS, LAST_SHARE * len(table.outside)):
                seconds = table.outside[-1][0] - table.outside[0][0]
                return Straggler(rank, count, len(table.outside), count / len(table.outside), seconds)
        return None
    ranks = [rank for rank in table.ranks if not is_out_of_data(rank.stacks.main)]
    groups = {(group.name, group.ranks) for rank in ranks for group in rank.groups if group.size > 1}
    stragglers = [_in_group(table, ranks, name, span) for name, span in sorted(groups)]
    return max(
        (straggler for straggler in stragglers if straggler),
        key=lambda straggler: straggler.share,
        default=None,
    )


def _in_group(table: CallTable, ranks: Sequence[RankSnapshot], name: str, span: str) -> Straggler | None:
    members = [
        rank for rank in ranks if any(group.name == name and group.ranks == span for group in rank.groups)
    ]
    times = {
        rank.rank: {
            call.sequence: table.clock_of(call) for call in table.history[rank.rank] if call.group == name
        }
        for rank in members
    }
    if len(times) < 2:
        return None
    common = sorted(set.intersection(*map(set, times.values())))
    if len(common) < LEAST_COLLECTIVES:
        return None
    margin = NEAR_SECONDS if len({rank.node for rank in members}) == 1 else FAR_SECONDS
    # The chance that one of n equal ranks is last k times in a row is n^-(k-1).
    least = max(LEAST_WAITS, 1 + math.ceil(math.log(1 / CHANCE, len(times))))
    # Older collectives may belong to another phase. They only confirm what the newest show.
    recent = common[-RECENT:]
    newest = recent[-max(LEAST_COLLECTIVES, len(recent) // 2) :]
    straggler = _judged(times, newest, margin, least)
    hint = straggler or _judged(times, recent, margin, FEW_WAITS)
    of_all_calls = _judged(times, common, margin, least) if hint else None
    return straggler or (of_all_calls if of_all_calls and hint and of_all_calls.rank == hint.rank else None)


def _judged(
    times: Mapping[int, Mapping[int, float]], common: Sequence[int], margin: float, least: int
) -> Straggler | None:
    """Return the rank that was late to ``least`` of the collectives ``common`` for which a rank waited."""
    late: dict[int, list[tuple[float, float]]] = {}
    for number in common:
        arrivals = sorted((of_rank[number], rank) for rank, of_rank in times.items())
        (second, _), (latest, rank) = arrivals[-2:]
        if latest - second > margin:
            late.setdefault(rank, []).append((second, latest))
    ends = [of_rank[number] for of_rank in times.values() for number in (common[0], common[-1])]
    seconds = max(ends) - min(ends)
    if not late or seconds < LEAST_SECONDS:
        return None
    rank = max(late, key=lambda rank: len(late[rank]))
    # A step may have several collectives. After a late one, all ranks come to the next together.
    waited = sum(map(len, late.values()))
    share = _length(late[rank]) / seconds
    enough = WAITED_SHARE if seconds >= SHORT_SECONDS else SHORT_SHARE
    if waited < least or len(late[rank]) < LAST_SHARE * waited or share < enough:
        return None
    return Straggler(rank, len(late[rank]), waited, share, seconds)


def _length(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union: collectives that overlap are waited for once."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
