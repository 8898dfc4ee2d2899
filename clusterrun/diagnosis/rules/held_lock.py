"""A rank holds the lock of a file that others wait for, and waits for others itself.

The kernel lists who holds which lock of a file. Fooled only if the lock is released by a third process. A
lock of ``multiprocessing`` may be held by the one rank that is further in the same function, so it is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from clusterrun.diagnosis.calls import LOCK, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import at_place, blame, first_culprit, verb_s, waited

CERTAINTY = 48


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_long_still:
        return []
    waiting: dict[int, list[int]] = {}
    for wait in table.waits:
        if wait.operation == LOCK and table.wait_by_rank.keys() >= set(wait.missing):
            waiting.setdefault(wait.missing[0], []).append(wait.rank)
    if not waiting:
        return []
    listed = [rank for rank, others in sorted(waiting.items()) if table.of(others[0]).process.lock_holder]
    if not listed:
        return [Hypothesis(partial(explain_unlisted, waiting=waiting), CERTAINTY)]
    return [Hypothesis(partial(explain, waiting=waiting), CERTAINTY, tuple(listed))]


def explain_unlisted(table: CallTable, blamed: Ranks, waiting: Mapping[int, list[int]]) -> Diagnosis:
    rank, others = next(iter(waiting.items()))
    operation = table.wait_by_rank[rank].operation
    sentence = f"{ranks_in_words(others)} wait{verb_s(others)} for a lock{at_place(table, *others)}, and rank"
    sentence += f" {rank} on {table.of(rank).node}, further in that function, waits for them in {operation}"
    sentence += f"{at_place(table, rank)}: it may hold the lock"
    remedy = "give a lock back before a call that others must join; or did a process end that held it?"
    return blame(table, Verdict.MISMATCH, sentence, {}, remedy, waited(table))


def explain(table: CallTable, blamed: Ranks, waiting: Mapping[int, list[int]]) -> Diagnosis:
    whys = {}
    for rank in blamed:
        others = waiting[rank]
        process = max((table.of(other).process for other in others), key=lambda process: process.lock_holder)
        file, holder = process.lock, process.lock_holder
        lock = f"the lock of {file}" if file else "the lock"
        who_holds, waits = "it", "waits"
        if holder != table.of(rank).process.pid:
            who_holds, waits = f"its process {holder}", "the rank waits"
        wait = f"{ranks_in_words(others)} wait{verb_s(others)} for{at_place(table, *others)}"
        why = f"{who_holds} holds {lock} that {wait}"
        whys[rank] = f"{why}, and {waits} in {table.wait_by_rank[rank].operation}{at_place(table, rank)}"
    subject, why = first_culprit(table, whys)
    sentence = f"{subject} waits while it holds the lock of a file: {why}"
    return blame(
        table, Verdict.MISMATCH, sentence, whys, "give the lock back before a call that others must join"
    )
