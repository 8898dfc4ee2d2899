"""Two threads of a rank call collectives on one process group, so that ranks may call them in another order.

torch records which thread began a call. Without that (torch before 2.9) the stacks show it. A thread that
takes turns with the main thread under a lock, in a job that hangs for another reason, looks the same. So does
a thread with a group of its own, in a rank that aborted for another reason before any rank left a record.
If stacks are all that is known, both calls must be of the default group, and no rank may be absent. A call
of the thread that all ranks have begun and that does not end waits for the main thread's backward pass.
"""

from __future__ import annotations

from functools import partial

from clusterrun.diagnosis.calls import CallTable, roots
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.stacks import BACKWARD, Doing, ThreadPlace, short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.wording import at_place, waited

# Above different calls: these follow from it.
CERTAINTY = 85
# The same if only stacks show both threads.
CERTAINTY_OF_STACKS = 81
# The newest records of a group in which an ended run must show both threads.
NEWEST = 8
# The name that torch gives to the group of all ranks.
DEFAULT_GROUP = "0"


def rule(table: CallTable) -> list[Hypothesis]:
    ranks_by_group = _shared_at_the_end(table) if table.end else _shared_now(table)
    if not ranks_by_group:
        return []
    group = min(ranks_by_group)
    ranks = tuple(sorted(ranks_by_group[group]))
    snapshots = [table.by_rank[rank] for rank in ranks if rank in table.by_rank]
    threads = [thread for rank in snapshots for thread in rank.stacks.threads if thread.operation]
    explanation = partial(explain, ranks=ranks, group=group, thread=threads[0] if threads else None)
    certainty = CERTAINTY if group and not table.by_stacks else CERTAINTY_OF_STACKS
    return [Hypothesis(explanation, certainty)]


def _shared_now(table: CallTable) -> dict[str, list[int]]:
    """Return the groups in whose calls main and other threads are, with the ranks of the other threads."""
    if table.by_stacks:
        shared = [
            rank.rank
            for rank in table.ranks
            if rank.location.doing is Doing.COLLECTIVE
            if rank.call.is_of_all or rank.location.operation == BACKWARD
            if any(thread.is_of_all for thread in rank.stacks.threads)
        ]
        # The group of a backward pass is unknown. Calls of all ranks in a group of their own would end.
        if len(shared) < table.size and not all(table.of(rank).call.is_of_all for rank in shared):
            return {}
        return {DEFAULT_GROUP: shared} if shared and table.is_long_still and not roots(table.waits) else {}
    ranks_by_group: dict[str, list[int]] = {}
    used_by_main = set()
    is_recorded = any(call.by_thread for call in table.calls)
    for rank in table.ranks if table.waits else ():
        for group in {call.group for call in table.history[rank.rank] if not call.done}:
            open_calls = [call for call in table.history[rank.rank] if not call.done]
            if is_recorded:
                by_threads = [call.by_thread for call in open_calls if call.group == group]
                by_thread, by_main = any(by_threads), not all(by_threads)
            else:
                # A thread in a collective is in this group only if the rank is in no call of another group.
                only_here = {call.group for call in open_calls} == {group}
                by_thread = only_here and any(thread.operation for thread in rank.stacks.threads)
                by_main = not by_thread or rank.location.doing is Doing.COLLECTIVE
            used_by_main |= {group} if by_main else set()
            if by_thread:
                ranks_by_group.setdefault(group, []).append(rank.rank)
    return {group: ranks for group, ranks in ranks_by_group.items() if group in used_by_main}


def _shared_at_the_end(table: CallTable) -> dict[str, list[int]]:
    """Return the groups that both threads of a rank used, with these ranks, if a mismatch caused the error.

    A rank shows both threads by its newest records of a group. A rank that aborted left no records, but its
    stacks show both. They were in the only group that others know, or in '' if nobody left a record.
    """
    error = first_error(table)
    if not error or not error.row or error.row.verdict is not Verdict.MISMATCH:
        return {}
    ranks_by_group: dict[str, list[int]] = {}
    for rank, calls in table.history.items():
        for group in {call.group for call in calls}:
            newest = [call.by_thread for call in calls if call.group == group][-NEWEST:]
            if any(newest) and not all(newest):
                ranks_by_group.setdefault(group, []).append(rank)
    groups = {call.group for call in table.calls}
    groups.update(group.name for rank in table.ranks for group in rank.groups)
    aborted = [error.rank for error in _aborted(table)]
    if aborted and not ranks_by_group and len(groups) < 2:
        ranks_by_group["".join(groups)] = aborted
    return ranks_by_group


def _aborted(table: CallTable) -> list[Error]:
    """Return the errors of ranks that aborted while two of their threads were in collectives."""
    return [error for error in table.end.errors if error.thread and error.main] if table.end else []


def explain(
    table: CallTable, blamed: Ranks, ranks: Ranks, group: str, thread: ThreadPlace | None
) -> Diagnosis:
    aborted = _aborted(table)
    called, main_line = "made calls", at_place(table, *(rank for rank in table.by_rank if table.line(rank)))
    if thread:
        called = f"called {thread.operation} at {short(thread.frame)}"
    elif aborted:
        called = f"made calls at {short(aborted[0].thread)}"
    if aborted and not main_line:
        main_line = f" at {short(aborted[0].main)}"
    where = f"in group {group}, which the main thread uses" if group else "while the main thread made its own"
    sentence = f"two threads use one process group: another thread {called} {where}{main_line}"
    sentence += "; so ranks make its calls in another order"
    remedy = "give that thread a process group of its own: group = dist.new_group() on every rank, and "
    remedy += "process_group=group (or group=group) in its calls"
    if not group:
        remedy += "; if it has one, compare the shapes and types that ranks pass at both lines"
    evidence = [f"on {ranks_in_words(ranks)} another thread than the main one {called}"]
    return Diagnosis(Verdict.MISMATCH, sentence, (), (), (*evidence, *waited(table)), remedy)
