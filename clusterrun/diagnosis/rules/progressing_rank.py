"""All ranks that the others wait for show progress: they save, compile or evaluate.

A rank that writes a log in a second thread, faster than ``WRITES``, and hangs in the first looks the same. An
endless loop may count, and a server may send signs of life for ever, so neither is called healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.rules.absent_rank import late_ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import reasons, verb_s, waited

CERTAINTY = 61


def rule(table: CallTable) -> list[Hypothesis]:
    late = [] if table.end else late_ranks(table)
    if not late or not all(table.gets_on(rank) for rank in late):
        return []
    # Further looks may find that the job steps, and that a rank that counts is slow.
    final = not any(rank.counts or rank.receives for rank in late)
    return [Hypothesis(partial(explain, late=late), CERTAINTY, final=final)]


def explain(table: CallTable, blamed: Ranks, late: Sequence[RankSnapshot]) -> Diagnosis:
    ranks, verdict, remedy = [rank.rank for rank in late], Verdict.NOTHING, ""
    if all(rank.writes for rank in late):
        does = f"write{verb_s(ranks)} a file that grows"
    elif all(rank.serves for rank in late):
        does = f"wait{verb_s(ranks)} for a request of a client, as an idle server does"
        verdict, remedy = Verdict.UNDETERMINED, "send it a request: these ranks hang if they stay there"
    elif not any(rank.counts or rank.receives for rank in late):
        does = f"compile{verb_s(ranks)}, or wait{verb_s(ranks)} for a busy program"
    else:
        counts = "; ".join(dict.fromkeys(count for rank in late for count in rank.counts))
        does = f"still work{verb_s(ranks)} ({counts or 'data or events arrive'})"
        if table.outside:
            # The looks saw the job make progress, so this rank is the last one of a step.
            does += "; earlier looks saw all ranks move"
        else:
            verdict = Verdict.UNDETERMINED
            remedy = "does that work end in time? If not, let all ranks share the work, or raise the time-out"
    sentence = f"the others wait for {ranks_in_words(ranks)}, which {does}"
    return Diagnosis(verdict, sentence, (), (), (*waited(table), *reasons(table, ranks)), remedy)
