"""All ranks that the others wait for write files that grow: they save a checkpoint.

A rank that writes a log in a second thread, faster than ``WRITES``, and hangs in the first looks the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.rules.absent_rank import late_ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import reasons, verb_s, waited

CERTAINTY = 61


def rule(table: CallTable) -> list[Hypothesis]:
    late = [] if table.end else late_ranks(table)
    if not late or not all(rank.writes for rank in late):
        return []
    return [Hypothesis(partial(explain, writing=[rank.rank for rank in late]), CERTAINTY)]


def explain(table: CallTable, blamed: Ranks, writing: Sequence[int]) -> Diagnosis:
    sentence = (
        f"the others wait for {ranks_in_words(writing)}, which write{verb_s(writing)} a file that grows"
    )
    return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *reasons(table, writing)))
