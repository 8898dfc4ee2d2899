"""Explains runs that a watchdog of the script itself ended because another rank hung; pure."""

from __future__ import annotations

import re
import signal

from clusterrun.diagnosis.evidence import RankSeen, Record
from clusterrun.diagnosis.explanations import reason
from clusterrun.diagnosis.job_snapshot import PATIENCE, USUAL, JobSnapshot, called
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stack_location import Doing, place
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.watchdog_lines import is_timeout

_NOTICED = re.compile(
    r"(?i)watch ?dog|\bno (?:\w+ )?(?:progress(?! bar)|step|heartbeat|activity)"
    r"|\b(?:stuck|hung|hangs?|hanging|stalled|deadlock)\b"
)
_SIGNALLED = "Fatal Python error"
"""What Python prints as a signal ends it, also of a process beside it that watches."""
_PLACE = re.compile(r"\s|Thread 0x|Current thread")
"""A line of a stack, in which the name of a file may say anything."""
_OF_TIME = (124, -signal.SIGALRM, 128 + signal.SIGALRM)
"""Codes of a rank whose time was up: timeout(1), and an alarm that nobody handles."""
INSIDE = (Doing.COLLECTIVE, Doing.RENDEZVOUS, Doing.UNKNOWN)
_TIMER_REMEDY = "what does that line wait for: a file, a lock, another process, the network?"


def noticed(left: Remains, root: Error | None) -> str:
    """What the rank that ended first said of a hang: its own exception, or a line before it was ended.

    torch's own watchdogs are read elsewhere.
    """
    failure = left.failure
    if failure is None or (root is not None and (root.rank != failure.rank or is_timeout(root))):
        return ""
    if root is None and failure.code in _OF_TIME:
        return failure.why
    lines = failure.last_lines if root is None or root.text.startswith(_SIGNALLED) else (root.text,)
    return next((line for line in reversed(lines) if _NOTICED.search(line) and not _PLACE.match(line)), "")


def of_watchdog(left: Remains, words: str) -> Diagnosis | None:
    """Who held the others up when a rank ended with such ``words``; None if that is not certain."""
    failure = left.failure
    if not words or left.per_node or failure is None or failure.rank < 0 or failure.ended:
        return None
    usual = JobSnapshot(seen=left.last, size=len(left.nodes)).longest_pause
    outside = [one for one in left.stood if place(one.stack).doing not in INSIDE]
    awaited = [(one, call) for one in outside if (call := _awaited_in(left, one))]
    late = [(one, call) for one, call in awaited if failure.at - call.at >= max(PATIENCE, USUAL * usual)]
    if not late or failure.rank in [one.rank for one, _ in late]:
        return None
    # Who waits for its GPU may be behind as well: the oldest call is the one that did not end.
    first = min((call for _, call in late), key=lambda one: one.at)
    late = [(one, call) for one, call in late if (call.group, call.sequence) == (first.group, first.sequence)]
    whys = [reason(one) for one, _ in late]
    culprits = tuple(Culprit(one.rank, one.node, why.why) for (one, _), why in zip(late, whys))
    who = ranks_in_words(one.rank for one, _ in late)
    said = f"{who} never came to {called(first)}, in which others had "
    said += f"waited {failure.at - first.at:.0f} s when {left.who(failure.rank)} ended the run: {whys[0].why}"
    evidence = tuple(dict.fromkeys((failure.why, words)))
    return Diagnosis(Verdict.NEVER_ARRIVED, said, culprits, (), evidence, whys[0].remedy)


def _awaited_in(left: Remains, late: RankSeen) -> Record | None:
    """The first collective that others have begun, and ``late``, of the same group, has not."""
    begun = {group.name: 0 for group in late.groups}
    for record in late.records:
        begun[record.group] = max(begun.get(record.group, 0), record.sequence)
    aside = (late.rank, left.failure.rank if left.failure else late.rank)
    records = [record for one in left.last if one.rank not in aside for record in one.records]
    after = (record for record in records if record.sequence > begun.get(record.group, 0) > 0)
    return min(after, key=lambda one: one.at, default=None)


def of_timers(left: Remains, timers: tuple[Error, ...]) -> Diagnosis | None:
    """The stacks that Python's faulthandler printed as a timer of the script ended each rank."""
    newest = {one.rank: one for one in timers if not one.survived}
    failure = left.failure
    if left.per_node or failure is None or failure.rank not in newest:
        return None
    waited = tuple(sorted(rank for rank, one in newest.items() if one.more))
    outside = {rank: one for rank, one in sorted(newest.items()) if not one.more and one.frame}
    if not waited or not outside:
        return of_watchdog(left, newest[failure.rank].said)
    elsewhere = "it was elsewhere when a timer of the script ended it"
    culprits = left.culprits({rank: f"{elsewhere}: {one.said}" for rank, one in outside.items()})
    said = f"{ranks_in_words(outside)} held the others up: {culprits[0].why}"
    evidence = tuple(f"rank {rank}: {newest[rank].said}" for rank in waited[:4])
    return Diagnosis(Verdict.NEVER_ARRIVED, said, culprits, (), evidence, _TIMER_REMEDY)
