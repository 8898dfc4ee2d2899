"""All ranks that the others wait for write files that grow: they save a checkpoint.

A rank that writes a log in a second thread, faster than ``WRITES``, and hangs in the first looks the same.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.rules.absent_rank import late_ranks

CERTAINTY = 61


def rule(table: CallTable) -> list[Hypothesis]:
    late = [] if table.end else late_ranks(table)
    if not late or not all(rank.writes for rank in late):
        return []
    return [Hypothesis("writing", CERTAINTY, facts={"writing": tuple(rank.rank for rank in late)})]
