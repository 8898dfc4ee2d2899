"""Ranks wait for a rank that waits for nobody, or for a node that does not answer.

It may still come: a rank that evaluates, saves or imports for all looks the same until it has taken longer
than before. ``CallTable.patience`` says how long that is. Long work and an endless loop look the same, so a
rank that computes is blamed only for a hang that was noticed, by the time-out that its user chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import PATIENCE, STOPPED, USUAL, CallTable, roots
from clusterrun.diagnosis.evidence import START_PATIENCE, RankSnapshot
from clusterrun.diagnosis.explain_rank import loop_remedy, reason
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.stacks import ENDED_PYTHON, TOGETHER, Doing
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import MOST_LINES, at_place, blame, other_half, reasons, verb_s, waited

CERTAINTY = 60
SILENT_NODE_REMEDY = "is that node alive? sinfo -R, and clusterrun check"


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end:
        return []
    late = late_ranks(table)
    if not late and table.mute and (missing := table.awaited.difference(table.by_rank)):
        # All that wait, wait for ranks of nodes that did not answer.
        return [Hypothesis(partial(explain_silent_node, missing=sorted(missing)), CERTAINTY)]
    late = [rank for rank in late if not table.gets_on(rank)]
    if not late:
        return []
    if table.cut_links and not any(reason(rank).certain for rank in late):
        return []  # It cannot be reached, or what it waits for cannot: ``unended_call.py`` names the link.
    culprits = tuple(rank.rank for rank in late)
    # A rank that has answered, is in no group and joins none still prepares.
    preparing = [rank.answered and not rank.groups and rank.location.doing is Doing.USER for rank in late]
    if all(prepares or _begins(table, rank) for prepares, rank in zip(preparing, late)):
        patience = START_PATIENCE
    else:
        works = any(
            rank.location.doing not in TOGETHER and rank.stacks.main != (ENDED_PYTHON,) for rank in late
        )
        patience = table.patience(late) if works else max(PATIENCE, USUAL * table.longest_pause)
    later = table.blameless_for(patience)
    if table.stalled and all(_begins(table, rank) and rank.works and rank.groups for rank in late):
        later = max(0.0, START_PATIENCE - table.stalled)
    if later and not any(reason(rank).certain for rank in late):
        return [Hypothesis(partial(explain_may_come, late=culprits), CERTAINTY, final=False, later=later)]
    if not table.stalled and all(rank.works for rank in late):
        return [Hypothesis(partial(explain_busy, late=culprits), CERTAINTY)]
    return _in_new_group(table, late) or [Hypothesis(explain_never_arrived, CERTAINTY, culprits)]


def late_ranks(table: CallTable) -> list[RankSnapshot]:
    """Return the ranks that others wait for, without those that wait for such a rank or its lock."""
    missing = roots(table.waits)
    late = [rank for rank in table.ranks if rank.rank in missing]
    if not missing and not table.by_stacks and not (table.calls and table.waits):
        # Without records: the ranks outside, while others are in a collective or a rendezvous. torch does not
        # record that ranks make a group. Few ranks that make one may do so alone.
        unrecorded = (Doing.RENDEZVOUS,) if table.calls else TOGETHER
        inside = {rank.rank for rank in table.ranks if rank.location.doing in unrecorded} | set(
            table.wait_by_rank
        )
        late = [rank for rank in table.ranks if inside and rank.rank not in inside]
        late = late if not table.calls or len(late) < len(inside) else []
    outside = [rank for rank in late if rank.location.doing is not Doing.COLLECTIVE]
    # A rank that makes a group of some of them waits as well.
    alone = [rank for rank in outside if not rank.default or rank.location.doing is not Doing.RENDEZVOUS]
    late = alone or outside or late
    processes = {(rank.node, rank.process.pid) for rank in late if rank.process.pid}
    return [rank for rank in late if (rank.node, rank.process.lock_holder) not in processes] or late


def _begins(table: CallTable, rank: RankSnapshot) -> bool:
    """Return whether it imports and has finished no collective yet, or works before it is in any group.

    If ranks do not report their groups, it is in none while all that wait make one.
    """
    is_first = not any(record.done for record in rank.records)
    has_group = bool(rank.groups)
    if table.by_stacks:
        waiting = [table.location(wait.rank).doing for wait in table.waits]
        has_group = any(doing is not Doing.RENDEZVOUS for doing in waiting)
    return (rank.location.doing is Doing.IMPORT and is_first) or (rank.works and not has_group)


def _in_new_group(table: CallTable, late: Sequence[RankSnapshot]) -> list[Hypothesis]:
    """All late ranks are in ``new_group``, where they wait for those in the collective.

    The fewer are odd. Either of two equal halves may be.
    """
    making = [rank.rank for rank in late if rank.default and rank.location.doing is Doing.RENDEZVOUS]
    inside = sorted(table.wait_by_rank)
    is_whole = len(making) + len(inside) >= table.size
    if not making or len(making) < max(len(late), len(inside)) or not is_whole:
        return []
    culprits = tuple(inside) if len(making) > len(inside) else ()
    explain = partial(explain_not_in_new_group, making=making, inside=inside)
    return [Hypothesis(explain, CERTAINTY, culprits)]


def explain_may_come(table: CallTable, blamed: Ranks, late: Ranks) -> Diagnosis:
    sentence = f"the others wait for {ranks_in_words(late)}, which may yet come"
    return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *reasons(table, late)))


def explain_busy(table: CallTable, blamed: Ranks, late: Ranks) -> Diagnosis:
    are = "is" if len(late) == 1 else "are"
    sentence = f"the others wait for {ranks_in_words(late)}, which {are} busy{at_place(table, *late)}: "
    sentence += "nothing shows whether that is long work or an endless loop"
    remedy = "look again later: a rank that is in other lines then, works. If only few ranks have that work, "
    remedy += "share it among all, or raise the time-out"
    if all(table.of(rank).stacks.loop for rank in late):
        remedy = f"{loop_remedy(table.of(late[0]).stacks.loop)}. A rank that is in other lines later, works"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), (*waited(table), *reasons(table, late)), remedy)


def explain_never_arrived(table: CallTable, blamed: Ranks, late_too: Ranks = ()) -> Diagnosis:
    ranks = [table.of(rank) for rank in blamed]
    whys = {rank.rank: reason(rank).why for rank in ranks}
    nodes = {rank.node for rank in ranks}
    on_node = f" on {ranks[0].node}" if len(nodes) == 1 and ranks[0].node else ""
    waits = [wait for wait in table.waits if ranks[0].rank in wait.missing]
    did = f" hold{verb_s(ranks)} the others up"
    if not any(rank.state for rank in table.ranks if rank.rank not in whys):
        did = f" still run{verb_s(ranks)}, and the others have ended"
    if waits:
        # A collective says more than a send.
        wait = max(waits, key=lambda wait: wait.sequence > 0)
        did = f" never came to {wait.title}" if wait.sequence else f" never called {other_half(wait)}"
        if table.by_stacks and wait.peer < 0:
            verb = "has" if len(ranks) == 1 else "have"
            did = f" {verb} not come to {wait.operation}"
    sides = RankVote(whys).sides
    lines = [f"{ranks_in_words(members)}: {why}" for why, members in sides[:MOST_LINES]]
    lines += [f"{len(sides) - MOST_LINES} more"] * (len(sides) > MOST_LINES)
    reasons = "; ".join(lines) if len(sides) > 1 else "each: " * (len(whys) > 1) + sides[0][0]
    sentence = f"{ranks_in_words(whys)}{on_node}{did}: {reasons}"
    late = [
        f"rank {rank} on {table.of(rank).node} has not come either: {reason(table.of(rank)).why}"
        for rank in late_too
    ]
    remedies = list(dict.fromkeys(reason(rank).remedy for rank in ranks))[:MOST_LINES]
    places = {rank.location.line for rank in ranks}
    is_held = any(rank.works or rank.state in STOPPED or rank.location.doing is Doing.DATA for rank in ranks)
    has_all = len(table.waits) + len(ranks) == len(table.living)
    is_of_few = has_all and 0 < len(table.waits) <= len(ranks)
    if is_of_few and len(places) == 1 and "" not in places and not is_held and not ranks[0].stacks.loop:
        # Few have come, and all others are in one line: perhaps the call is not meant for them.
        inside = [wait.rank for wait in table.waits]
        where = f"{table.waits[0].operation}{at_place(table, *inside)}"
        only = f"{ranks_in_words(inside)} only"
        remedies.append(f"or is {where} called by {only}, where every rank must call it?")
    remedy = "; ".join(remedies)
    return blame(table, Verdict.NEVER_ARRIVED, sentence, whys, remedy, (*waited(table), *late[:MOST_LINES]))


def explain_silent_node(table: CallTable, blamed: Ranks, missing: Sequence[int]) -> Diagnosis:
    culprits = tuple(Culprit(-1, node, why) for node, why in table.mute)
    nodes = ", ".join(node for node, _ in table.mute)
    sentence = f"the others wait for {ranks_in_words(missing)}; {nodes} did not answer"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), waited(table), SILENT_NODE_REMEDY)


def explain_not_in_new_group(
    table: CallTable, blamed: Ranks, making: Sequence[int], inside: Sequence[int]
) -> Diagnosis:
    meets = table.location(making[0]).operation
    operation = table.wait_by_rank[inside[0]].operation
    are = "it is" if len(inside) == 1 else "they are"
    sentence = (
        f"{ranks_in_words(making)} wait{verb_s(making)} in {meets}{at_place(table, *making)} for "
        f"{ranks_in_words(inside)}, "
    )
    sentence += f"and {are} in {operation}{at_place(table, *inside)}"
    sentence += "" if blamed else ": nothing shows which of the two is wrong"
    # It may have made another group in that place.
    groups = {table.of(rank).request.makes[1:] for rank in making}
    members = groups.pop() if len(groups) == 1 else ()
    omitted = f"made the group of {ranks_in_words(unfolded(*members))}" if members else f"called {meets}"
    whys = {}
    for rank in blamed:
        place = f"{table.wait_by_rank[rank].operation}{at_place(table, rank)}"
        whys[rank] = f"it is in {place} and has not {omitted}"
    needed = "every rank must call {} for each group, member or not, with the same ranks in the same order"
    if any(table.of(rank).request.meets for rank in making):
        needed = "with use_local_synchronization every member of the new group must call {}"
    remedy = needed.format(meets)
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy)
