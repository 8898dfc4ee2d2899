"""A watchdog of the script itself ended a rank because another rank hung.

The message must sound like a hang, a rank must be outside of collectives, and others must have waited for
it for a while. A message that only mentions a hang does not suffice.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from functools import partial

from clusterrun.diagnosis.calls import PATIENCE, USUAL, Call, CallTable
from clusterrun.diagnosis.explain_end import with_consequences
from clusterrun.diagnosis.explain_rank import WAIT_REMEDY, reason
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.timed_out import INSIDE
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.model.states import State

CERTAINTY = 90
_NOTICED = re.compile(
    r"(?i)watch ?dog|\bno (?:\w+ )?(?:progress(?! bar)|step|heartbeat|activity)"
    r"|\b(?:stuck|hung|hangs?|hanging|stalled|deadlock)\b"
)
# Python prints this when a signal ends it, also the signal of a process that watches it.
_SIGNALLED = "Fatal Python error"
# A line of a stack. The name of a file in it may say anything.
_STACK_LINE = re.compile(r"\s|Thread 0x|Current thread")
# Exit codes of a rank whose time was up: timeout(1), and an alarm that nobody handles.
_OF_TIME = (124, -signal.SIGALRM, 128 + signal.SIGALRM)


def rule(table: CallTable) -> list[Hypothesis]:
    run = table.end
    failure = run.failure if run else None
    if not run or run.per_node or not failure or failure.rank < 0 or run.state is State.COMPLETED:
        return []
    root = first_error(table)
    timers = {error.rank: error for error in run.timers if not error.survived}
    if not root and failure.rank in timers:
        waiting = tuple(sorted(rank for rank, error in timers.items() if error.more))
        outside = tuple(sorted(rank for rank, error in timers.items() if not error.more and error.frame))
        if waiting and outside:
            explain = partial(explain_timer, run=run, timers=timers, waiting=waiting)
            return [Hypothesis(explain, CERTAINTY, outside, complete=with_consequences)]
        timed = _held_up(table, run, timers[failure.rank].message)
        if timed:
            return timed
    return _held_up(table, run, _message(run, root))


def _message(run: Remains, root: Error | None) -> str:
    """Return the first ended rank's message about a hang. ``timed_out.py`` reads torch's own watchdogs."""
    failure = run.failure
    if not failure or (root and (root.rank != failure.rank or is_timeout(root))):
        return ""
    if not root and failure.code in _OF_TIME:
        return failure.why
    lines = failure.last_lines
    if root and not root.text.startswith(_SIGNALLED):
        lines = (root.text,)
    noticed = (line for line in reversed(lines) if _NOTICED.search(line) and not _STACK_LINE.match(line))
    return next(noticed, "")


def _held_up(table: CallTable, run: Remains, message: str) -> list[Hypothesis]:
    failure = run.failure
    if not message or not failure or failure.ended:
        return []
    enough = max(PATIENCE, USUAL * table.longest_pause)
    late = {}
    for rank in table.ranks:
        if rank.stacks.main and rank.location.doing not in INSIDE:
            # The first collective that other ranks of the same group have begun, and this rank has not.
            begun = {group.name: 0 for group in rank.groups}
            for own_call in table.history[rank.rank]:
                begun[own_call.group] = max(begun.get(own_call.group, 0), own_call.sequence)
            after = [
                call
                for call in table.calls
                if call.rank not in (rank.rank, failure.rank) and call.sequence > begun.get(call.group, 0) > 0
            ]
            call = min(after, key=lambda call: call.at, default=None)
            if call and failure.at - call.at >= enough:
                late[rank.rank] = call
    if not late or failure.rank in late:
        return []
    # A rank that waits for its GPU may be behind as well. The oldest call is the one that did not end.
    first = min(late.values(), key=lambda call: call.at)
    culprits = tuple(
        rank for rank, call in late.items() if (call.group, call.sequence) == (first.group, first.sequence)
    )
    explain = partial(explain_noticed_hang, run=run, call=first, message=message)
    return [Hypothesis(explain, CERTAINTY, culprits, complete=with_consequences)]


def explain_noticed_hang(
    table: CallTable, blamed: Ranks, run: Remains, call: Call, message: str
) -> Diagnosis:
    failure = run.failure
    reasons = {rank: reason(table.of(rank)) for rank in blamed}
    first = reasons[blamed[0]]
    sentence = f"{ranks_in_words(reasons)} never came to {call.title}, in which others had waited "
    evidence: tuple[str, ...] = (message,)
    if failure:
        sentence += f"{failure.at - call.at:.0f} s when {run.who(failure.rank)} ended the run: {first.why}"
        evidence = tuple(dict.fromkeys((failure.why, *evidence)))
    culprits = tuple(Culprit(rank, table.of(rank).node, why.why) for rank, why in reasons.items())
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, first.remedy)


def explain_timer(
    table: CallTable, blamed: Ranks, run: Remains, timers: Mapping[int, Error], waiting: Ranks
) -> Diagnosis:
    elsewhere = "it was elsewhere when a timer of the script ended it"
    culprits = run.culprits({rank: f"{elsewhere}: {timers[rank].message}" for rank in blamed})
    sentence = f"{ranks_in_words(blamed)} held the others up: {culprits[0].why}"
    evidence = tuple(f"rank {rank}: {timers[rank].message}" for rank in waiting[:4])
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, WAIT_REMEDY)
