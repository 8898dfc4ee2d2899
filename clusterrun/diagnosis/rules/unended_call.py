"""All ranks have begun a call, and it does not end: a link, or arguments that no record shows.

Over TCP, unacknowledged bytes name the two ends of the link. Over RDMA nothing does.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import HALF, Call, CallTable
from clusterrun.diagnosis.habits import departs
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.vote import one_only

CERTAINTY = 20


def rule(table: CallTable) -> list[Hypothesis]:
    stuck = [] if table.end else [wait for wait in table.waits if not wait.missing]
    if not stuck:
        return []
    if not table.owed and not table.is_long_still:
        return [Hypothesis("may end", CERTAINTY, final=False)]
    facts = {"stuck": stuck}
    if all(wait.operation == HALF for wait in stuck):
        departing = {wait.rank: departs(table, wait) for wait in table.waits}
        odd = one_only(rank for rank, departure in departing.items() if departure)
        is_known = len(table.waits) == table.size and None not in departing.values() and odd >= 0
        return [Hypothesis("unanswered", CERTAINTY, (odd,) if is_known else (), facts)]
    uses_tcp = all(_is_over_tcp(table, wait) for wait in stuck)
    return [Hypothesis("unended", CERTAINTY, facts={**facts, "uses_tcp": uses_tcp})]


def _is_over_tcp(table: CallTable, wait: Call) -> bool:
    """Whether the call uses only TCP, where lost data shows as unacknowledged.

    The group of a send or receive is unknown: all groups of the rank must use TCP.
    """
    rank = table.of(wait.rank)
    groups = [group for group in rank.groups if group.name == wait.group] or list(rank.groups)
    return bool(groups) and all(group.backend == "gloo" for group in groups)
