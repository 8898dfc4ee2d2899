"""A collective timed out: who did not join it, or called something else, by the lines of the watchdogs.

A rank that is ended while others still print is silent as well. So silence counts only if one rank is
silent, or if the ranks that did not time out do report how far they are.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stacks import Doing
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.watchdog_lines import WORLD, WatchdogLines, is_timeout
from clusterrun.model.frozen import replace
from clusterrun.model.states import State

CERTAINTY = 85
INSIDE = (Doing.COLLECTIVE, Doing.RENDEZVOUS, Doing.UNKNOWN)


def rule(table: CallTable) -> list[Hypothesis]:
    run, error = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not error or not is_timeout(error):
        return []
    errors = run.errors
    if run.per_node:
        # Several launchers print here. How many ranks each has started is unknown.
        errors = tuple(replace(error, rank=error.inner) for error in errors if error.inner >= 0)
        if error.inner < 0:
            return []
    lines = WatchdogLines(errors)
    if lines.calls:
        return _of_watchdogs(lines, 0 if run.per_node else len(run.nodes))
    if lines.stuck:
        culprits = lines.stuck if len(lines.stuck) == 1 else ()
        return [Hypothesis("stuck watchdog", CERTAINTY, culprits, {"stuck": lines.stuck})]
    # gloo's message names no collective. A monitored barrier lists the absent ranks.
    facts: dict[str, object] = {"waiting": tuple(sorted(lines.timed_out))}
    silent = () if run.per_node else tuple(sorted({*range(len(run.nodes))} - lines.spoke))
    for kind, ranks in (
        ("absent from barrier", lines.absent),
        ("silent at time-out", silent if len(silent) == 1 else ()),
        ("outside at time-out", outside_of_calls(table)),
    ):
        if ranks:
            return [Hypothesis(kind, CERTAINTY, ranks, facts)]
    return [Hypothesis("gloo timed out", CERTAINTY, (), facts)]


def _of_watchdogs(lines: WatchdogLines, size: int) -> list[Hypothesis]:
    group, waits = lines.main_group()
    newest = max(call.sequence for call in waits.values())
    vote = RankVote({rank: call.operation for rank, call in waits.items() if call.sequence == newest})
    facts = {
        "sides": vote.sides,
        "group": group,
        "number": newest,
        "waiting": tuple(waits),
        "begun": {},
        "low": {},
    }
    if not vote.is_unanimous:
        return [Hypothesis("timed out in different calls", CERTAINTY, vote.suspects, facts)]
    absent = _absent(lines, group, waits, newest, size)
    low = {rank: call for rank, call in waits.items() if group and call.sequence < newest}
    if absent:
        facts["begun"] = {rank: lines.begun.get(rank, {}).get(group) for rank in absent}
        return [Hypothesis("absent at time-out", CERTAINTY, tuple(sorted(absent)), facts)]
    if low and 2 * len(low) < len(waits):
        return [Hypothesis("absent at time-out", CERTAINTY, tuple(sorted(low)), {**facts, "low": low})]
    facts["everybody"] = len(waits) == size and not low
    return [Hypothesis("timed out", CERTAINTY, (), facts)]


def _absent(lines: WatchdogLines, group: str, waits: dict[int, Call], newest: int, size: int) -> list[int]:
    """The ranks that have not begun what others timed out in, as far as that is certain."""
    others = [rank for rank in range(size) if rank not in waits]
    if group != WORLD:
        return others if len(others) == 1 else []
    behind = [rank for rank in others if lines.begun.get(rank, {}).get(group, newest) < newest]
    silent = [rank for rank in others if group not in lines.begun.get(rank, {})]
    others_answer = any(rank in lines.begun for rank in others) and 2 * len(silent) < size
    return [*behind, *(silent if len(silent) == 1 or others_answer else ())]


def outside_of_calls(table: CallTable) -> tuple[int, ...]:
    """The silent ranks that were in no collective when they were told to end, if all share one group only."""
    run = table.end
    if not run or run.per_node:
        return ()
    silent = {*range(len(run.nodes))} - {error.rank for error in run.errors}
    stood = [rank for rank in table.ranks if rank.stacks.main and rank.rank in silent]
    groups = [group for rank in table.ranks for group in rank.groups]
    if {rank.rank for rank in stood} != silent or any(group.size != len(run.nodes) for group in groups):
        return ()
    return tuple(rank.rank for rank in stood if groups and rank.location.doing not in INSIDE)
