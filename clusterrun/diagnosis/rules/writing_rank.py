"""All ranks that the others wait for write files that grow: they save a checkpoint.

A rank that writes a log in a second thread, faster than ``WRITES``, and hangs in the first looks the same.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.rules.absent_rank import late_ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import reasons, verb_s, waited

CERTAINTY = 61


def rule(table: CallTable) -> list[Hypothesis]:
    late = [] if table.end else late_ranks(table)
    if not late or not all(rank.writes for rank in late):
        return []
    return [Hypothesis("writing", CERTAINTY, facts={"writing": tuple(rank.rank for rank in late)})]


def explain(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks = hypothesis.facts["writing"]
    sentence = f"the others wait for {ranks_in_words(ranks)}, which write{verb_s(ranks)} a file that grows"
    return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *reasons(table, ranks)))


EXPLANATIONS = {
    "writing": explain,
}
