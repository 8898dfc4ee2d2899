"""Ranks wait for each other in a circle of sends and receives.

If all send, or all receive, in one line, their order is wrong. Otherwise one of them names a wrong peer: a
rank that another one wants to meet in the other half. It names the right one if it is as far away as the peer
of each other rank in its line, which a topology without such a pattern may fool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.rules.different_places import parting_frames
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import MOST_LINES, at_place, blame, to_peer, verb_s

CERTAINTY = 44


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_long_still:
        return []
    peers = {
        wait.rank: wait.peer
        for wait in table.waits
        if wait.missing and wait.peer >= 0 and table.of(wait.rank).call.name != "wait"
    }
    calls = {rank: (table.of(rank).call.name, table.location(rank).line) for rank in peers}
    circles = [circle for rank in sorted(peers) if (circle := _circle(peers, rank))]
    if not circles:
        return []
    first, own_calls = circles[0], {calls[rank] for rank in circles[0]}
    if len({name for name, _ in own_calls}) == 1:
        # Other circles in the same lines have the same wrong order.
        alike = [circle for circle in circles if {calls[rank] for rank in circle} == own_calls]
        ranks = tuple(dict.fromkeys(rank for circle in alike for rank in circle))
        is_part = len(ranks) < table.size and len(own_calls) == 1
        return [Hypothesis(partial(explain, circle=ranks), CERTAINTY, tuple(sorted(ranks)) * is_part)]
    mates_by_rank = {rank: mates for rank in first if (mates := _mates(table, rank))}
    unusual = [rank for rank in mates_by_rank if not _has_usual_peer(table, rank)]
    culprits = (unusual[0],) if len(unusual) == 1 else ()
    explanation = partial(explain_wrong_peer, circle=first, mates_by_rank=mates_by_rank)
    return [Hypothesis(explanation, CERTAINTY, culprits)]


def _circle(peers: Mapping[int, int], start: int) -> tuple[int, ...]:
    """Return the ranks from ``start`` on if each waits for the next, and the last for ``start``; else ()."""
    circle: list[int] = []
    rank = start
    while rank in peers and rank not in circle:
        circle.append(rank)
        rank = peers[rank]
    return tuple(circle) if len(circle) > 1 and rank == start else ()


def _mates(table: CallTable, rank: int) -> tuple[int, ...]:
    """Return the ranks that wait to meet ``rank`` in the other half of its call."""
    halves = {"send", "recv"}
    return tuple(
        wait.rank
        for wait in table.waits
        if wait.peer == rank and {table.of(rank).call.name, table.of(wait.rank).call.name} == halves
    )


def _has_usual_peer(table: CallTable, rank: int) -> bool:
    """Return whether the peers of at least two other ranks in the same call are as far from them."""
    own = table.wait_by_rank[rank]
    distances = [
        (wait.peer - wait.rank) % table.size
        for wait in table.waits
        if wait.peer >= 0
        and (wait.line, table.of(wait.rank).call.name) == (own.line, table.of(rank).call.name)
    ]
    return len(distances) > 2 and len(set(distances)) == 1


def _steps(table: CallTable, circle: Sequence[int]) -> dict[int, str]:
    steps = {}
    # Ranks in one line of a helper are told apart by the lines that called it.
    ways = parting_frames(table) if table.line(*circle) else {}
    for rank in circle:
        call = table.of(rank).call
        name = call.name.replace("recv", "receive")
        way = f" by way of {short(ways[rank])}" if rank in ways else ""
        steps[rank] = f"{name}s {to_peer(call, call.name)}{at_place(table, rank)}{way}"
    return steps


def _listing(steps: Mapping[int, str]) -> str:
    listing = ", ".join(f"rank {rank} {step}" for rank, step in list(steps.items())[:MOST_LINES])
    return listing + (" and so on" if len(steps) > MOST_LINES else "")


def explain(table: CallTable, blamed: Ranks, circle: Sequence[int]) -> Diagnosis:
    steps = _steps(table, circle)
    is_sent = table.of(circle[0]).call.name == "send"
    first, second = ("send", "receive") if is_sent else ("receive", "send")
    sentence = f"{ranks_in_words(circle)} wait for each other: each {first}s before it {second}s: "
    remedy = (
        f"let one of each two {second} first, or begin both at once (batch_isend_irecv, or sendrecv of MPI)"
    )
    if not table.line(*circle):
        remedy += f"; or compare how often each of them {first}s in a turn: one may have left out a {second}"
    whys = {rank: f"it {steps[rank]}" for rank in blamed}
    return blame(table, Verdict.MISMATCH, sentence + _listing(steps), whys, remedy)


def explain_wrong_peer(
    table: CallTable, blamed: Ranks, circle: Sequence[int], mates_by_rank: Mapping[int, tuple[int, ...]]
) -> Diagnosis:
    steps = _steps(table, circle)
    halves = {"send": "receive from", "recv": "send to"}
    whys = {}
    for rank, mates in mates_by_rank.items():
        half = halves[table.of(rank).call.name]
        whys[rank] = f"it {steps[rank]}, while {ranks_in_words(mates)} wait{verb_s(mates)} to {half} it"
    sentence = f"{ranks_in_words(circle)} wait for each other in sends and receives: {_listing(steps)}; "
    if blamed:
        sentence += f"rank {blamed[0]} names another rank than the one that it meets"
    else:
        either = ", or ".join(f"rank {rank}: {why}" for rank, why in list(whys.items())[:MOST_LINES])
        sentence += f"the wrong one is either {either}"
    remedy = "let each send name as dst who receives it, and each recv as src who sends it"
    return blame(table, Verdict.MISMATCH, sentence, {rank: whys[rank] for rank in blamed}, remedy)
