"""Ranks that make a group ask for another world, rank, store or group than the others.

The store is known under several names on its own node, so a name alone proves nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.verdict import unfolded
from clusterrun.diagnosis.vote import RankVote

# Below different calls, which are recorded; a wrong world or rank explains a wrong store and wrong groups.
CERTAINTY = 75


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end:
        return []
    return _other_world(table) or _other_rank(table) or _other_store(table) or _other_groups(table)


def _other_world(table: CallTable) -> list[Hypothesis]:
    """Ranks that wait for more ranks than there are, or joined another number than others."""
    worlds = {}
    for rank in table.ranks:
        worlds[rank.rank] = rank.request.world or (rank.default.size if rank.default else 0)
    asking = [rank for rank in table.ranks if worlds[rank.rank] and rank.request.started]
    right = [rank for rank in asking if worlds[rank.rank] == rank.request.started]
    wrong = [
        rank.rank
        for rank in asking
        if rank.request.world > rank.request.started or (right and rank not in right)
    ]
    return [Hypothesis("other world", CERTAINTY, tuple(wrong), {"worlds": worlds})] if wrong else []


def _other_rank(table: CallTable) -> list[Hypothesis]:
    """Several ranks say that they are the same rank. The one that was started as it is right."""
    asking: dict[int, list[int]] = {}
    for rank in table.ranks:
        if rank.request.world and rank.request.asks >= 0:
            asking.setdefault(rank.request.asks, []).append(rank.rank)
    wrong = [
        rank for asks, ranks in sorted(asking.items()) if len(ranks) > 1 for rank in ranks if rank != asks
    ]
    return [Hypothesis("other rank", CERTAINTY, tuple(wrong), {"asking": asking})] if wrong else []


def _other_store(table: CallTable) -> list[Hypothesis]:
    """All ranks wait in ``init_process_group``, but not at one address."""
    stores = {
        rank.rank: rank.request.store for rank in table.ranks if rank.request.world and rank.request.store
    }
    if len(stores) < table.size:
        return []
    (address, _), *others = RankVote(stores).sides
    aliases = [ranks for other, ranks in others if _is_alias(table, address, other, ranks)]
    vote = RankVote(
        {rank: store for rank, store in stores.items() if not any(rank in ranks for ranks in aliases)}
    )
    if vote.is_unanimous:
        return []
    return [Hypothesis("other store", CERTAINTY, vote.odd, {"sides": vote.sides})]


def _is_alias(table: CallTable, address: str, other: str, ranks: Sequence[int]) -> bool:
    """Whether both may be one place: on its own node, the machine of rank 0 has several names."""
    home = {rank.node for rank in table.ranks if rank.rank == 0}
    same_port = address.rpartition(":")[2] == other.rpartition(":")[2]
    return same_port and {table.of(rank).node for rank in ranks} <= home


def _other_groups(table: CallTable) -> list[Hypothesis]:
    """Ranks make other groups than others, or in another order: torch numbers groups as they come.

    The one that contradicts all others is odd, if at least two of these are there.
    """
    if not table.is_long_still or not any(rank.request.makes for rank in table.ranks):
        return []
    groups = {rank.rank: _groups_of(rank) for rank in table.ranks}
    contradictions = [
        (rank.rank, other.rank, name)
        for rank in table.ranks
        for other in table.ranks
        if rank is not other
        for name, members in sorted(groups[rank.rank].items())
        if _contradicts(other, name, members, groups[other.rank], name in rank.request.makes[:1])
    ]
    if not contradictions:
        return []
    odd = [rank for rank in table.ranks if all(rank.rank in pair[:2] for pair in contradictions)]
    passed = [rank for rank in odd if not rank.request.makes]
    if len(passed) == 1 and 2 * sum(bool(rank.request.makes) for rank in table.ranks) > table.size:
        odd = passed  # The others wait for it, and have come as far as each other.
    culprits = (odd[0].rank,) if len(odd) == 1 else ()
    facts = {"contradictions": contradictions, "groups": groups}
    return [Hypothesis("other groups", CERTAINTY, culprits, facts)]


def _groups_of(rank: RankSnapshot) -> dict[str, str]:
    """The numbered groups of a rank, with the one that it makes, and their ranks."""
    groups = {group.name: group.ranks for group in rank.groups if not group.default}
    if len(rank.request.makes) == 2:
        groups[rank.request.makes[0]] = rank.request.makes[1]
    return {name: ranks for name, ranks in groups.items() if name.isdigit() and ranks}


def _contradicts(
    other: RankSnapshot, name: str, members: str, groups: dict[str, str], is_made_now: bool
) -> bool:
    """Whether ``other`` made another group of that number, or has passed the one that waits for it."""
    if name in groups:
        return groups[name] != members
    return is_made_now and other.rank in unfolded(members) and other.request.made > int(name)
