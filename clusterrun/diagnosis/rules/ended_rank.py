"""No rank printed an error of its own: what ended the run is an exit code, a signal, or an early end.

An exit code says little. A rank that ended with exit code 0 is blamed only if others still waited for it.
"""

from __future__ import annotations

import signal

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import first_error, was_killed
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.known_errors import meaning
from clusterrun.diagnosis.printed_errors import last_message
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.timed_out import outside_of_calls
from clusterrun.diagnosis.verdict import unfolded
from clusterrun.model.states import State

CERTAINTY = 40
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_CLOSED = "Connection closed by peer"


def rule(table: CallTable) -> list[Hypothesis]:
    run = table.end
    if not run:
        return []
    failure = run.failure
    if not failure or run.state is State.COMPLETED:
        return [Hypothesis("no failure", CERTAINTY)]
    if first_error(table):
        return []
    if failure.ended:
        return [_early_end(table, run, unfolded(failure.ended))]
    if run.state is State.OUT_OF_MEMORY or (failure.code in KILLED and run.memory_notes):
        return [Hypothesis("killed for memory", CERTAINTY, (failure.rank,))]
    leaver = _who_left(table, run)
    if leaver >= 0:
        return [Hypothesis("left the group", CERTAINTY, (leaver,))]
    return [Hypothesis("ended rank", CERTAINTY, (failure.rank,))]


def _early_end(table: CallTable, run: Remains, together: tuple[int, ...]) -> Hypothesis:
    """The ranks that ended with exit code 0 while others waited, or the few that went on."""
    awaited: set[int] = set()
    for rank in table.ranks:
        if rank.rank not in together and table.history[rank.rank]:
            newest = table.history[rank.rank][-1]
            awaited.update(table.members(rank, newest.group))
    ended = tuple(sorted(awaited & set(together))) or together
    others = len(run.nodes) - len(together)
    failed = run.failure.rank if run.failure else -1
    culprits = ended if len(ended) <= others or ended != together else (failed,)
    return Hypothesis("early end", CERTAINTY, culprits, {"ended": ended, "together": together})


def _who_left(table: CallTable, run: Remains) -> int:
    """The one rank that lived on outside of all collectives, if the first to fail lost a connection; else -1.

    A process that ends closes its connections. A connection that a network cuts is reset, or times out.
    """
    failure = run.failure
    if not failure or failure.peer or was_killed(run):
        return -1
    row = meaning(last_message(failure.last_lines))
    outside = outside_of_calls(table)
    own = [error for error in run.errors if error.rank == failure.rank]
    closed = any(_CLOSED in error.text for error in own)
    return outside[0] if row and row.consequence and len(outside) == 1 and closed else -1
