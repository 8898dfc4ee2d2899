"""Ranks that make a group ask for another world, rank, store or group than the others.

The store is known under several names on its own node, so a name alone proves nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.stacks import function_of
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import at_place, blame, verb_s
from clusterrun.model.hostlist import fold
from clusterrun.model.phrases import count_of

# Below different calls, which are recorded; a wrong world or rank explains a wrong store and wrong groups.
CERTAINTY = 75
_LOOPBACK = ("localhost", "::1", "ip6-localhost")


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end:
        return []
    return (
        _other_world(table)
        or _other_rank(table)
        or _store_elsewhere(table)
        or _other_store(table)
        or _other_groups(table)
    )


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
    return [Hypothesis(partial(explain_other_world, worlds=worlds), CERTAINTY, tuple(wrong))] if wrong else []


def _other_rank(table: CallTable) -> list[Hypothesis]:
    """Several ranks say that they are the same rank. The one that was started as it is right."""
    asking: dict[int, list[int]] = {}
    for rank in table.ranks:
        if rank.request.world and rank.request.asks >= 0:
            asking.setdefault(rank.request.asks, []).append(rank.rank)
    wrong = [
        rank for asks, ranks in sorted(asking.items()) if len(ranks) > 1 for rank in ranks if rank != asks
    ]
    return [Hypothesis(partial(explain_other_rank, asking=asking), CERTAINTY, tuple(wrong))] if wrong else []


def _store_elsewhere(table: CallTable) -> list[Hypothesis]:
    """Ranks look for rank 0 where it is not: on their own node, or all of them on a third one.

    Their ``MASTER_ADDR`` is ``localhost`` or the name of their own node. Rank 0 reaches its store at once,
    from its own address. A name of another form than that of the node may be an alias of it.
    """
    home = next((rank.node for rank in table.ranks if rank.rank == 0), "")
    wrong = [rank.rank for rank in table.ranks if rank.request.store and rank.node != home and _is_own(rank)]
    (store, *others) = {rank.request.store for rank in table.ranks} or {""}
    # One address for all is nobody's fault. On loopback only the ranks beside rank 0 find it.
    is_of_all = not others and not _is_loopback(store.rpartition(":")[0])
    if home and not wrong and is_of_all and len(table.ranks) == table.size and table.is_long_still:
        host = store.rpartition(":")[0]
        forms = [re.sub(r"\d", "", name) for name in (host, home)]
        is_third = (forms[0] == forms[1] or forms[0] == "...") and not any(map(_is_own, table.ranks))
        wrong = [rank.rank for rank in table.ranks if is_third and all(map(_is_looking, table.ranks))]
    if not home or not wrong:
        return []
    explain = partial(explain_store_elsewhere, home=home, store=store)
    return [Hypothesis(explain, CERTAINTY, () if is_of_all else tuple(wrong))]


def _is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")


def _is_own(rank: RankSnapshot) -> bool:
    """Return whether a rank looks for the store at a name or an address of its own node.

    Elsewhere in ``init_process_group`` the address is that of ``MASTER_ADDR``, which a script may not use.
    """
    host = rank.request.store.rpartition(":")[0]
    return _is_looking(rank) and (_is_loopback(host) or host in (rank.node, *rank.process.addresses))


def _is_looking(rank: RankSnapshot) -> bool:
    return _is_in(rank, "_create_c10d_store")


def _is_in(rank: RankSnapshot, function: str) -> bool:
    return any(function_of(frame) == function for frame in rank.stacks.main)


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
    odd = vote.odd
    hosts = {store.rpartition(":")[0] for store, _ in vote.sides}
    is_port = len(vote.sides) == 2 and len(hosts - {"file"}) == 1
    if not odd and is_port and 0 in vote.sides[0][1]:
        odd = vote.sides[1][1]  # rank 0 opens the store at its port
    return [Hypothesis(partial(explain_other_store, sides=vote.sides), CERTAINTY, odd)]


def _is_alias(table: CallTable, address: str, other: str, ranks: Sequence[int]) -> bool:
    """Return whether both may be one place: on its own node, the machine of rank 0 has several names."""
    home = {rank.node for rank in table.ranks if rank.rank == 0}
    same_port = address.rpartition(":")[2] == other.rpartition(":")[2]
    return same_port and {table.of(rank).node for rank in ranks} <= home


def _other_groups(table: CallTable) -> list[Hypothesis]:
    """Ranks make other groups than others, or in another order: torch numbers groups as they come.

    With gloo, ranks also make groups of one number with different members, and then wait in their first call
    for ever. (The parts of a group that NCCL splits share a number.) The rank that contradicts all others is
    odd, if there are at least two others.
    """
    is_making = any(rank.request.makes for rank in table.ranks)
    stuck = {
        wait.group
        for wait in table.waits
        if not table.awaited and not table.owed
        for group in table.of(wait.rank).groups
        if (group.name, group.backend) == (wait.group, "gloo")
    }
    if not table.is_long_still or not (is_making or stuck):
        return []
    groups = {rank.rank: _groups_of(rank) for rank in table.ranks}
    contradictions = [
        (rank.rank, other.rank, name)
        for rank in table.ranks
        for other in table.ranks
        if rank is not other
        for name, members in sorted(groups[rank.rank].items())
        if is_making or name in stuck
        if _contradicts(other, name, members, groups[other.rank], name in rank.request.makes[:1])
    ]
    if not contradictions:
        return []
    odd = [rank for rank in table.ranks if all(rank.rank in pair[:2] for pair in contradictions)]
    passed = [rank for rank in odd if not rank.request.makes]
    if len(passed) == 1 and 2 * sum(bool(rank.request.makes) for rank in table.ranks) > table.size:
        odd = passed  # The others wait for it, and have come as far as each other.
    culprits = (odd[0].rank,) if len(odd) == 1 else ()
    explain = partial(explain_other_groups, contradictions=contradictions, groups=groups)
    return [Hypothesis(explain, CERTAINTY, culprits)]


def _groups_of(rank: RankSnapshot) -> dict[str, str]:
    """Return the numbered groups of a rank, with the one that it makes, and their ranks."""
    groups = {group.name: group.ranks for group in rank.groups if not group.default}
    if len(rank.request.makes) == 2:
        groups[rank.request.makes[0]] = rank.request.makes[1]
    return {name: ranks for name, ranks in groups.items() if name.isdigit() and ranks}


def _contradicts(
    other: RankSnapshot, name: str, members: str, groups: dict[str, str], is_made_now: bool
) -> bool:
    """Return whether ``other`` made another group of that number, or has passed the one that waits for it."""
    if name in groups:
        return groups[name] != members
    return is_made_now and other.rank in unfolded(members) and other.request.made > int(name)


def explain_other_world(table: CallTable, blamed: Ranks, worlds: Mapping[int, int]) -> Diagnosis:
    whys = {}
    for rank in blamed:
        request = table.of(rank).request
        doing = (
            f"it waits in init_process_group{at_place(table, rank)} for" if request.world else "it has joined"
        )
        whys[rank] = f"{doing} a world of {worlds[rank]} ranks, and was started as one of {request.started}"
    first = blamed[0]
    sentence = (
        f"{ranks_in_words(whys)} asked init_process_group for a world of {worlds[first]} ranks; there are "
    )
    sentence += f"{table.of(first).request.started}"
    remedy = "set WORLD_SIZE and the world_size of init_process_group to the number of ranks, or set neither"
    if table.by_stacks:
        remedy = f"WORLD_SIZE or the world_size of init_process_group is {worlds[first]}, and "
        remedy += f"{count_of(table.of(first).request.started, 'rank')} started: set it to their number "
        remedy += "(srun: export WORLD_SIZE=$SLURM_NTASKS), or start as many (srun "
        remedy += f"--ntasks={worlds[first]}, nprocs of mp.spawn, --nproc-per-node)"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, ())


def explain_other_rank(table: CallTable, blamed: Ranks, asking: Mapping[int, list[int]]) -> Diagnosis:
    whys = {}
    for rank in blamed:
        asks = table.of(rank).request.asks
        whys[rank] = f"it waits in init_process_group{at_place(table, rank)} as rank {asks}"
    first = table.of(blamed[0])
    same = [rank for rank in asking[first.request.asks] if rank != first.rank]
    sentence = (
        f"rank {first.rank} on {first.node} says in init_process_group that it is rank {first.request.asks}, "
    )
    sentence += f"as {ranks_in_words(same)} does"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there"
    if table.by_stacks:  # a script that starts its ranks itself numbers them
        remedy += "; or count the ranks of all nodes before this one (SLURM_NODEID) in the rank"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, ())


def _is_at(table: CallTable, rank: int) -> str:
    line = table.line(rank)
    return f"; it is at {line}" if line else ""


def explain_store_elsewhere(table: CallTable, blamed: Ranks, home: str, store: str) -> Diagnosis:
    whys = {}
    for rank in blamed:
        request = table.of(rank).request
        whys[rank] = f"it looks for rank 0 at {request.store}, its own node, and rank 0 is on {home}"
        whys[rank] += _is_at(table, rank)
    nodes = fold(list(dict.fromkeys(table.of(rank).node for rank in blamed)))
    sentence = f"{ranks_in_words(blamed)} on {nodes} look{verb_s(blamed)} for rank 0 on their own node, "
    sentence += f"and rank 0 is on {home}"
    if not blamed:
        sentence = f"all ranks look for rank 0 at {store}, and rank 0 is on {home}"
    return blame(table, Verdict.MISMATCH, sentence, whys, _address_remedy(table), ())


def _address_remedy(table: CallTable) -> str:
    home = next((rank.node for rank in table.ranks if rank.rank == 0), "the node of rank 0")
    owners = [rank.rank for rank in table.ranks if _is_in(rank, "_tcp_rendezvous_handler")]
    if owners:
        return (
            f"init_process_group{at_place(table, *owners)} has an address of its own: leave init_method out,"
            f" so that torch takes MASTER_ADDR and MASTER_PORT; or name {home} and one port in all ranks"
        )
    if table.by_stacks:
        return f"set MASTER_ADDR to {home} and one MASTER_PORT on all nodes, before srun starts the ranks"
    return "leave MASTER_ADDR and MASTER_PORT as they are: every rank is given the same"


def explain_other_store(table: CallTable, blamed: Ranks, sides: Sequence[tuple[str, Ranks]]) -> Diagnosis:
    (where, _), *others = sides
    whys = {
        rank: f"it looks for rank 0 at {address}, where the others look at {where}{_is_at(table, rank)}"
        for address, ranks in others
        for rank in ranks
        if rank in blamed
    }
    ranks_inside = [rank for _, ranks in sides for rank in ranks]
    listed = "; ".join(f"{ranks_in_words(ranks)} at {address}" for address, ranks in sides)
    sentence = (
        f"ranks wait for each other in init_process_group{at_place(table, *ranks_inside)} at different "
    )
    sentence += f"addresses: {listed}"
    remedy = _address_remedy(table)
    if any(address.startswith("file:") for address, _ in sides):
        remedy = "give init_process_group no init_method, or every rank the same file on a shared file system"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, ())


def explain_other_groups(
    table: CallTable,
    blamed: Ranks,
    contradictions: Sequence[tuple[int, int, str]],
    groups: Mapping[int, Mapping[str, str]],
) -> Diagnosis:
    remedy = "let every rank call new_group for all groups, its own or not, in the same order"
    if not blamed:
        rank, other, name = contradictions[0]
        theirs = groups[other].get(name)
        sentence = "ranks do not make the same groups in the same order: "
        sentence += f"group {name} of rank {rank} has {_members(groups[rank][name])}"
        sentence += (
            f", that of rank {other} {_members(theirs)}"
            if theirs
            else f", and rank {other} made no such group"
        )
        return blame(table, Verdict.MISMATCH, sentence, {}, remedy, ())
    (odd,) = blamed
    first, two, name = next((pair for pair in contradictions if pair[0] != odd), contradictions[0])
    other = first if first != odd else two
    mine = groups[odd].get(name)
    group_text = (
        f"its group {name} is of {_members(mine)}" if mine else f"it made no group {name} with itself in it"
    )
    why = f"{group_text}, where that of rank {other} is of {_members(groups[other].get(name, ''))}"
    if not mine and table.of(other).request.makes:
        why += f", which waits for it{at_place(table, other)}"
    why += _is_at(table, odd)
    sentence = f"rank {odd} on {table.of(odd).node} does not make the groups that the others make: {why}"
    return blame(table, Verdict.MISMATCH, sentence, {odd: why}, remedy, ())


def _members(ranks: str) -> str:
    return ranks_in_words(unfolded(ranks))
