"""The ranks move: no hang, though perhaps one rank is slow, or their results are wrong.

A rank that prints while others wait for it counts as moving, and may print the same retry for ever. One in
``init_process_group`` does not count, because torch prints its retries there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import Call, CallTable, roots
from clusterrun.diagnosis.explain_rank import reason
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.rules.different_sizes import size_in_bytes
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.stragglers import Straggler, find_straggler
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import at_place, blame, reasons, waited

CERTAINTY = 90
# Every rank must bring the same number of elements to these. NCCL does not compare them.
_ONE_SIZE = ("all_reduce", "reduce", "broadcast")


def rule(table: CallTable) -> list[Hypothesis]:
    awaited, late = table.awaited, roots(table.waits)
    working = [
        rank.rank
        for rank in table.ranks
        if rank.moved or (rank.printed and not rank.meets and (not table.waits or rank.rank in late))
    ]
    if table.end or table.stalled:
        return []
    straggler = find_straggler(table)
    # No rank moved during the look, because all wait for the slow one, as so often.
    is_usual = straggler is not None and awaited == {straggler.rank} and not table.is_long_still
    if not working and not is_usual:
        return []
    # Small messages of different sizes fit one buffer of NCCL. Then no rank waits, and the results are wrong.
    differing = []
    for (_, members, _), calls in table.places().items():
        passed = {rank: call for rank, call in calls.items() if call.done and call.operation in _ONE_SIZE}
        is_one_operation = len({call.operation for call in passed.values()}) == 1
        vote = RankVote({rank: (size_in_bytes(call), call.types) for rank, call in passed.items()})
        if members and is_one_operation and not vote.is_unanimous:
            differing.append([(passed[ranks[0]], ranks) for _, ranks in vote.sides])
    sides = min(differing, key=lambda sides: min(call.at for call, _ in sides), default=[])
    if sides:
        suspects = RankVote({rank: call.shape for call, ranks in sides for rank in ranks}).suspects
        return [Hypothesis(partial(explain_sizes_passed, sides=sides), CERTAINTY, suspects)]
    if straggler:
        explain = partial(explain_slow_rank, slow=straggler)
        return [Hypothesis(explain, CERTAINTY, (straggler.rank,))]
    printing = tuple(working) if awaited and not any(rank.moved for rank in table.ranks) else ()
    # Ranks that moved just now may have come to calls in which they wait for each other.
    places = {(wait.operation, wait.line) for wait in table.waits}
    parted = table.by_stacks and len(table.waits) == len(table.living) and len(places) > 1
    late = table.outside[-1][1] if table.outside else ()
    final = not awaited and not parted and not late
    return [Hypothesis(partial(explain_progress, printing=printing), CERTAINTY, final=final)]


def explain_progress(table: CallTable, blamed: Ranks, printing: Ranks) -> Diagnosis:
    if printing:
        sentence = f"the others wait for {ranks_in_words(printing)}, still printing"
        return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *reasons(table, printing)))
    first = table.ranks[0]
    seconds = first.process.seconds
    count = sum(record.at >= first.clock - seconds for record in first.records)
    evidence: tuple[str, ...] = ()
    if count:
        evidence = (
            f"rank {first.rank} began {count} collectives within {seconds:.1f} s",
            f"the longest pause between two of the last ones was {table.longest_pause:.1f} s",
        )
    return Diagnosis(Verdict.NOTHING, "the ranks are making progress", evidence=evidence)


def explain_slow_rank(table: CallTable, blamed: Ranks, slow: Straggler) -> Diagnosis:
    rank = table.of(slow.rank)
    sentence = f"the others wait for rank {slow.rank} on {rank.node} {slow.share * 100:.0f} % of the time"
    last = f"it came last to {slow.last} of the last {slow.of} that were waited for"
    if table.by_stacks:
        last = f"{slow.last} of {slow.of} looks found the others waiting for it{at_place(table, slow.rank)}"
    last += f", within {slow.seconds:.1f} s"
    why = f"it is slow: {last}"
    samples = rank.stacks.samples
    if samples:
        line = max(samples, key=samples.count)
        looks = f"{samples.count(line)} of {len(samples)} looks"
        why += f"; outside of collectives it was at {short(line)} in {looks}"
    if rank.writes:
        why += f"; {reason(rank).why}"
    remedy = "has every rank the same work? if so: clusterrun check compares that node with others"
    return blame(table, Verdict.SLOW, sentence, {slow.rank: why}, remedy, [last])


def explain_sizes_passed(table: CallTable, blamed: Ranks, sides: Sequence[tuple[Call, Ranks]]) -> Diagnosis:
    lines = [f"{ranks_in_words(ranks)} called {call.arguments}" for call, ranks in sides]
    sentence = f"the run continues with wrong results: {', '.join(lines)} in one collective, and none waits"
    whys = {}
    for rank in blamed:
        mine = next(call for call, ranks in sides if rank in ranks)
        other, others = next((call, ranks) for call, ranks in sides if rank not in ranks)
        whys[rank] = f"it called {mine.arguments} where {ranks_in_words(others)} called {other.arguments}"
    remedy = "let every rank bring the same number of elements: NCCL does not compare them"
    evidence = [f"{sides[0][0].title}: {line}" for line in lines]
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, evidence)
