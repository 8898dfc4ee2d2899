"""A rank is stopped, or has ended while others wait for it.

Certain: the kernel reports the state, and such a process cannot come.
"""

from __future__ import annotations

from functools import partial

from clusterrun.diagnosis.calls import STOPPED, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.rules.absent_rank import explain_never_arrived
from clusterrun.diagnosis.stacks import Doing

CERTAINTY = 100
# No look has ever seen the process: it is known by its absence only, as in a job of another launcher.
NO_PROCESS = 70


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end:
        return []
    # Without records: all ranks that still run are in a collective.
    all_wait = {rank.location.doing for rank in table.living} == {Doing.COLLECTIVE}
    ended = [rank.rank for rank in table.ranks if not rank.state and (all_wait or rank.rank in table.awaited)]
    stopped = [rank.rank for rank in table.ranks if rank.state in STOPPED]
    culprits = tuple(sorted((*ended, *stopped)))
    if not culprits:
        return []
    is_inferred = not any(table.of(rank).process.pid for rank in culprits)
    certainty = NO_PROCESS if is_inferred else CERTAINTY
    late = table.awaited.difference(culprits, table.wait_by_rank)
    late_too = tuple(rank.rank for rank in table.ranks if rank.rank in late)
    return [Hypothesis(partial(explain_never_arrived, late_too=late_too), certainty, culprits)]
