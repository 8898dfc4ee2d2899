"""Finds the straggler of a job that makes progress: who comes last to collectives, and how late; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from clusterrun.diagnosis.evidence import RankSeen
from clusterrun.diagnosis.job_snapshot import RECENT
from clusterrun.diagnosis.stack_location import out_of_data
from clusterrun.model.frozen import frozen

LEAST_COLLECTIVES = 16
LEAST_SECONDS = 0.3
LAST_SHARE = 0.85
"""Of the collectives that somebody waited for: a rank that comes last this often does so by no chance,
where they are many enough."""
CHANCE = 1e-4
LEAST_WAITS = 5
FEW_WAITS = 2
WAITED_SHARE = 0.15
"""Of the time, spent waiting for one rank: less is the noise of any job."""
SHORT_SECONDS = 5.0
SHORT_SHARE = 0.3
"""The same of so short a time: on a crowded node one rank lags for a while, and then another."""
NEAR_SECONDS = 0.005
FAR_SECONDS = 0.03
"""Shorter waits do not count: within one node, and between nodes, whose clocks are known no better."""


@frozen
class Straggler:
    """``rank`` came last to ``last`` of ``of`` collectives; the others waited ``share`` of ``seconds``."""

    rank: int
    last: int
    of: int
    share: float
    seconds: float


def find_straggler(seen: Sequence[RankSeen], offsets: Mapping[str, float]) -> Straggler | None:
    """Return the one rank that the others wait for; ``offsets``: each node's clock minus ours.

    Ranks that are out of data legitimately wait for those that still have some (torch's ``Join``).
    """
    seen = [one for one in seen if not out_of_data(one.stack)]
    groups = {(group.name, group.ranks) for one in seen for group in one.groups if group.size > 1}
    found = [_in_group(seen, name, ranks, offsets) for name, ranks in sorted(groups)]
    return max((one for one in found if one), key=lambda one: one.share, default=None)


def _in_group(
    seen: Sequence[RankSeen], name: str, ranks: str, offsets: Mapping[str, float]
) -> Straggler | None:
    members = [one for one in seen if any(g.name == name and g.ranks == ranks for g in one.groups)]
    times = {
        one.rank: {r.sequence: r.at - offsets.get(one.node, 0.0) for r in one.records if r.group == name}
        for one in members
    }
    if len(times) < 2:
        return None
    common = sorted(set.intersection(*(set(of_rank) for of_rank in times.values())))
    if len(common) < LEAST_COLLECTIVES:
        return None
    margin = NEAR_SECONDS if len({one.node for one in members}) == 1 else FAR_SECONDS
    # So many that one of equal ranks is last each time by a chance of ``CHANCE`` at most.
    least = max(LEAST_WAITS, 1 + math.ceil(math.log(1 / CHANCE, len(times))))
    # What was before may be another phase: older collectives only confirm what the newest show.
    recent = common[-RECENT:]
    newest = recent[-max(LEAST_COLLECTIVES, len(recent) // 2) :]
    found = _judged(times, newest, margin, least)
    shown = found or _judged(times, recent, margin, FEW_WAITS)
    whole = _judged(times, common, margin, least) if shown else None
    return found or (whole if whole and shown and whole.rank == shown.rank else None)


def _judged(
    times: Mapping[int, Mapping[int, float]], common: Sequence[int], margin: float, least: int
) -> Straggler | None:
    """Who is late to those of ``common`` that somebody waited for, at least ``least`` of them."""
    last: dict[int, list[tuple[float, float]]] = {}
    for number in common:
        arrivals = sorted((of_rank[number], rank) for rank, of_rank in times.items())
        (second, _), (latest, rank) = arrivals[-2:]
        if latest - second > margin:
            last.setdefault(rank, []).append((second, latest))
    ends = [of_rank[number] for of_rank in times.values() for number in (common[0], common[-1])]
    seconds = max(ends) - min(ends)
    if not last or seconds < LEAST_SECONDS:
        return None
    rank = max(last, key=lambda one: len(last[one]))
    # Several collectives a step: all come together to those that follow a late one.
    waited = sum(map(len, last.values()))
    share = _length(last[rank]) / seconds
    enough = WAITED_SHARE if seconds >= SHORT_SECONDS else SHORT_SHARE
    if waited < least or len(last[rank]) < LAST_SHARE * waited or share < enough:
        return None
    return Straggler(rank, len(last[rank]), waited, share, seconds)


def _length(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union: collectives that overlap are waited for once."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
