"""The ranks' models differ: DDP compares the number of parameters, and each rank names one that differs.

The larger side may be the wrong one. A majority of ranks with the same mistake fools this rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import mismatch
from clusterrun.model.states import State

CERTAINTY = 82
_PARAMETERS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not root or not root.row:
        return []
    counts: dict[int, int] = {}
    for error in run.errors:
        if match := _PARAMETERS.search(error.text):
            counts.update({int(match[1]): int(match[2]), int(match[3]): int(match[4])})
    if not counts or root.row.verdict is not Verdict.MISMATCH:
        return []
    vote = RankVote(counts)
    culprits = () if run.per_node else vote.odd
    return [Hypothesis(partial(explain, sides=vote.sides), CERTAINTY, culprits)]


def explain(table: CallTable, blamed: Ranks, sides: Sequence[tuple[int, Ranks]]) -> Diagnosis:
    usual_number = sides[0][0]
    whys = {
        rank: f"its model has {number} parameters, those of others {usual_number}"
        for number, ranks in sides
        for rank in ranks
        if rank in blamed
    }
    lines = []
    for number, ranks in sides:
        have = "has" if len(ranks) == 1 else "have"
        lines.append(f"{ranks_in_words(ranks)} {have} {number}")
    sentence = f"the ranks' models differ in their number of parameters: {'; '.join(lines)}"
    return mismatch(table, sentence, whys)
