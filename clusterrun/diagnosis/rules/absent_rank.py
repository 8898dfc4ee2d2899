"""Ranks wait for a rank that waits for nobody, or for a node that does not answer.

It may still come: a rank that evaluates, saves or imports for all looks the same until it has taken longer
than before. ``CallTable.patience`` says how long that is.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.calls import PATIENCE, USUAL, CallTable, roots
from clusterrun.diagnosis.evidence import START_PATIENCE, RankSnapshot
from clusterrun.diagnosis.explain_rank import reason
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stacks import Doing

CERTAINTY = 60
TOGETHER = (Doing.COLLECTIVE, Doing.RENDEZVOUS)


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end:
        return []
    late = [rank for rank in late_ranks(table) if not rank.writes]
    if not late:
        return _unseen(table) if not late_ranks(table) else []
    culprits = tuple(rank.rank for rank in late)
    later = table.blameless_for(_patience(table, late))
    if table.stalled and all(_begins(table, rank) and rank.works and rank.groups for rank in late):
        later = max(0.0, START_PATIENCE - table.stalled)
    if later and not any(reason(rank).certain for rank in late):
        return [Hypothesis("may come", CERTAINTY, facts={"late": culprits}, final=False, later=later)]
    return _in_new_group(table, late) or [Hypothesis("never arrived", CERTAINTY, culprits, {"late_too": ()})]


def late_ranks(table: CallTable) -> list[RankSnapshot]:
    """The ranks that others wait for, without those that only follow from another late rank."""
    missing = roots(table.waits)
    late = [rank for rank in table.ranks if rank.rank in missing]
    if not missing:
        late = _outside_of_all(table)
    outside = [rank for rank in late if rank.location.doing is not Doing.COLLECTIVE]
    # A rank that makes a group of some of them waits as well.
    alone = [rank for rank in outside if not rank.default or rank.location.doing is not Doing.RENDEZVOUS]
    return alone or outside or late


def _outside_of_all(table: CallTable) -> list[RankSnapshot]:
    """Without records: the ranks outside while others are in a collective or a rendezvous."""
    inside = set(table.wait_by_rank)
    inside |= {rank.rank for rank in table.ranks if rank.location.doing in TOGETHER}
    outside = [rank for rank in table.ranks if rank.rank not in inside]
    return outside if inside and not table.calls and len(outside) < len(table.ranks) else []


def _patience(table: CallTable, late: Sequence[RankSnapshot]) -> float:
    """Seconds without movement before ``late`` are blamed. A rank in another call gets less."""
    if all(_begins(table, rank) or _prepares(rank) for rank in late):
        return START_PATIENCE
    works = any(rank.location.doing not in TOGETHER for rank in late)
    return table.patience(late) if works else max(PATIENCE, USUAL * table.longest_pause)


def _begins(table: CallTable, rank: RankSnapshot) -> bool:
    """Whether it imports and has finished no collective yet, or works before it is in any group.

    If ranks do not report their groups, it is in none while all that wait make one.
    """
    is_first = not any(record.done for record in rank.records)
    has_group = bool(rank.groups)
    if table.by_stacks:
        waiting = [table.location(wait.rank).doing for wait in table.waits]
        has_group = any(doing is not Doing.RENDEZVOUS for doing in waiting)
    return (rank.location.doing is Doing.IMPORT and is_first) or (rank.works and not has_group)


def _prepares(rank: RankSnapshot) -> bool:
    """Whether it answered that it is in no group yet, and does something else than join one."""
    return rank.answered and not rank.groups and rank.location.doing is Doing.USER


def _unseen(table: CallTable) -> list[Hypothesis]:
    """All that wait, wait for ranks of nodes that did not answer."""
    missing = tuple(sorted(table.awaited.difference(table.by_rank)))
    return (
        [Hypothesis("node is silent", CERTAINTY, facts={"missing": missing})]
        if table.mute and missing
        else []
    )


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
    facts = {"making": tuple(making), "inside": tuple(inside)}
    return [Hypothesis("not in new_group", CERTAINTY, culprits, facts)]
