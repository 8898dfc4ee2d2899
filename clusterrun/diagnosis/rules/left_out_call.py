"""Ranks wait in a call for members that have gone on to a wider call, in which all members take part.

There they wait for the others. Either they left the call out, or the others make it too early or once too
often. The side that departs from its habit is odd. Otherwise the smaller side is, which a new phase of the
script may fool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import HALF, KEY, Call, CallTable, sends
from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.habits import HABIT, departs
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import at_place, blame, first_culprit, other_half, verb_s

CERTAINTY = 40


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not (table.is_crossed or table.is_long_still):
        return []
    at = table.wait_by_rank
    gone_on: dict[int, Call] = {}
    for wait in table.waits:
        narrow = table.participants(wait)
        for rank in (rank for rank in wait.missing if rank in at and wait.rank in at[rank].missing):
            wide = table.participants(at[rank])
            # In a world of two a send takes as many ranks as a collective.
            is_send = not (wait.sequence or wait.is_of_all)
            if narrow < wide or (narrow == wide and is_send and (at[rank].sequence or at[rank].is_of_all)):
                gone_on[rank] = wait
    gone_on = {rank: wait for rank, wait in gone_on.items() if wait.rank not in gone_on}
    if not gone_on:
        return []
    disputes = []
    for key in dict.fromkeys(wait.key for wait in gone_on.values()):
        inside = [wait for wait in table.waits if wait.key == key]
        departed = [at[rank] for rank, wait in sorted(gone_on.items()) if wait.key == key]
        disputes.append((inside, departed, _odd(table, inside, departed)))
    decided = [dispute for dispute in disputes if dispute[2]]
    culprits = tuple(dict.fromkeys(wait.rank for _, _, odd in decided for wait in odd))
    return [Hypothesis(partial(explain, disputes=decided or disputes[:1]), CERTAINTY, culprits)]


def _has_ignored(table: CallTable, rank: int, inside: Sequence[Call]) -> bool:
    """Return whether a rank made the call that others wait in, but with a group of other ranks."""
    return any(wait.operation in table.of(rank).call.ignored for wait in inside)


def _odd(table: CallTable, inside: list[Call], departed: list[Call]) -> list[Call]:
    """Return the odd side: the ranks in the call, or those that have continued; [] if nothing decides it."""
    inside_departs = {departs(table, wait) for wait in inside}
    departed_departs = {departs(table, wait) for wait in departed}
    if (inside_departs, departed_departs) == ({True}, {False}):
        return inside
    if (inside_departs, departed_departs) == ({False}, {True}) or _skipped_in_turn(table, inside, departed):
        return departed
    if all(_has_ignored(table, call.rank, inside) for call in departed):
        return departed
    # How many ranks have made a call, and how many have not. Groups of the same kind count as well.
    wait = inside[0]
    if wait.operation == KEY:
        arrived, stayed = 2, 1
    elif wait.operation == HALF:
        own_sends = sends(table.of(wait.rank))
        arrived, stayed = sum(sends(other) == own_sends for other in table.ranks), len(departed)
    else:
        mine = table.participants(wait)
        passed, others = 0, 0
        for other in table.ranks:
            for group in other.groups:
                if group.size == len(mine) and not mine & set(table.members(other, group.name)):
                    newest = max(
                        (call.sequence for call in table.history[other.rank] if call.group == group.name),
                        default=0,
                    )
                    others += 1
                    passed += newest >= wait.sequence > 0
        arrived = len(mine) - len(wait.missing) + passed
        stayed = len(wait.missing) + others - passed
    return departed if arrived > stayed else inside if arrived < stayed else []


def _skipped_in_turn(table: CallTable, inside: list[Call], departed: list[Call]) -> bool:
    """Return whether all ranks made the call after a fixed number of calls of the other group.

    The ranks that have gone on wait in what always followed that call, one turn after the last one.
    """
    narrow, wide = inside[0].group, departed[0].group
    turns = {
        wait.rank: _counts_before(table, table.of(wait.rank), narrow, wide) for wait in (*inside, *departed)
    }
    if not all(len(counts) > HABIT and len(_steps(counts)) == 1 for counts in turns.values()):
        return False
    for wait in departed:
        counts = turns[wait.rank]
        shapes = {call.sequence: call.shape for call in table.history[wait.rank] if call.group == wide}
        due = counts[-1] + _steps(counts).pop()
        following = {shapes.get(count + 1) for count in counts}
        if wait.sequence != due + 1 or following != {wait.shape}:
            return False
    return True


def _counts_before(table: CallTable, rank: RankSnapshot, narrow: str, wide: str) -> list[int]:
    """Return how many calls of ``wide`` a rank had begun before each of its calls of ``narrow``."""
    counts = []
    for call in table.history[rank.rank]:
        if call.group == narrow:
            before = [
                other.sequence
                for other in table.history[rank.rank]
                if other.group == wide and other.at < call.at
            ]
            counts.append(max(before, default=-1))
    return [count for count in counts if count >= 0]


def _steps(counts: list[int]) -> set[int]:
    return {after - before for before, after in zip(counts, counts[1:])}


def explain(
    table: CallTable, blamed: Ranks, disputes: Sequence[tuple[list[Call], list[Call], list[Call]]]
) -> Diagnosis:
    if not blamed:
        return _either_side(table, *disputes[0][:2])
    whys = {}
    for inside, departed, odd in disputes:
        for wait in odd:
            whys[wait.rank] = _why_odd(table, wait, inside, departed)
    subject, why = first_culprit(table, whys)
    _, departed, odd = disputes[0]
    did = (
        "went on without a call that others wait in"
        if odd is departed
        else "waits in a call that others do not make"
    )
    remedy = "let all members of a group make its calls equally often, and in one order with other groups'"
    return blame(table, Verdict.MISMATCH, f"{subject} {did}: {why}", whys, remedy)


def _why_odd(table: CallTable, odd: Call, inside: Sequence[Call], departed: Sequence[Call]) -> str:
    if odd in departed:
        wait = [wait for wait in inside if odd.rank in wait.missing][-1]
        waiting = f"rank {wait.rank} waits for"
        not_done = f"not called {other_half(wait)}, in which {waiting} it"
        if wait.operation == KEY:
            key = table.of(wait.rank).call.key
            name = f"the key {key}" if key else "the key"
            not_done = f"not set {name} of the store that {waiting}"
        elif _has_ignored(table, odd.rank, inside):
            not_done = f"called {wait.operation} with a group of which it is no member, while {waiting} it"
        doing = f"it is in {odd.operation}{at_place(table, odd.rank)}"
        return f"{doing} and has {not_done}{at_place(table, wait.rank)}"
    place = f"{departed[0].operation}{at_place(table, *(wait.rank for wait in departed))}"
    why = f"it waits in {odd.named}{at_place(table, odd.rank)} for {ranks_in_words(odd.missing)}, in {place}"
    return f"{why}: it came too early, or once too often"


def _either_side(table: CallTable, inside: Sequence[Call], departed: Sequence[Call]) -> Diagnosis:
    inside_ranks, departed_ranks = [wait.rank for wait in inside], [wait.rank for wait in departed]
    callers, others = ranks_in_words(inside_ranks), ranks_in_words(departed_ranks)
    inside_place, departed_place = at_place(table, *inside_ranks), at_place(table, *departed_ranks)
    sentence = f"{callers} wait{verb_s(inside_ranks)} in {inside[0].named}{inside_place} for {others}, in "
    sentence += f"{departed[0].operation}{departed_place}: either {others} left out {other_half(inside[0])}, "
    mistake = "made a call too many"
    if inside[0].peer >= 0:
        mistake += ", or named a wrong rank or tag"
    sentence += f"or {callers} {mistake}; nothing shows which"
    remedy = "compare how often each of both comes to its line, and under which condition"
    return blame(table, Verdict.MISMATCH, sentence, {}, remedy)
