"""Ranks wait for a key of the store, and the only rank whose lines set it waits as well, past them.

The key is evaluated from the source text with the variables as they are now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import KEY, CallTable, set_line
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import at_place, blame, first_culprit, verb_s

CERTAINTY = 50


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_long_still:
        return []
    waits = [
        wait
        for wait in table.waits
        if wait.operation == KEY and table.wait_by_rank.keys() >= set(wait.missing)
    ]
    waiting_for = {}
    for wait in waits:
        (setter,) = wait.missing
        if set_line(table.of(setter), table.of(wait.rank).call.key)[0]:
            waiting_for[setter] = wait.rank
    if not waiting_for:
        return []
    explanation = partial(explain, waiting=[wait.rank for wait in waits], waiting_for=waiting_for)
    return [Hypothesis(explanation, CERTAINTY, tuple(sorted(waiting_for)))]


def explain(
    table: CallTable, blamed: Ranks, waiting: Sequence[int], waiting_for: Mapping[int, int]
) -> Diagnosis:
    whys = {}
    for setter in blamed:
        key = table.of(waiting_for[setter]).call.key
        line, under = set_line(table.of(setter), key)
        key_text = f"its key of the store (of {key})" if ", " in key else f"the key {key} of the store"
        why = f"it has not set {key_text}, which {short(line)} sets"
        why += f" under '{under}', which does not hold there" if under else ""
        gone_on = table.of(setter).call.name != "store"
        whys[setter] = f"{why}, though it has continued{at_place(table, setter)}" if gone_on else why
    subject, why = first_culprit(table, whys)
    sentence = (
        f"{ranks_in_words(waiting)} wait{verb_s(waiting)} for a key of the store that {subject} sets: {why}"
    )
    remedy = "under which condition does it come to that line? let every rank set what others wait for"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy)
