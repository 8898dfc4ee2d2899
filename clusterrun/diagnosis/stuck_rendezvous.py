"""Ranks that wait for each other to make a group: who asked for something else, or does not come; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.evidence import RankSeen
from clusterrun.diagnosis.flight_records import Waiting
from clusterrun.diagnosis.job_snapshot import JobSnapshot
from clusterrun.diagnosis.stack_location import Doing, place
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words, unfolded


def other_request(snapshot: JobSnapshot) -> Diagnosis | None:
    """Ranks that do not meet because one asks for another world, rank's number, place or group."""
    found = _other_world(snapshot) or _other_rank(snapshot)
    return found or _other_store(snapshot) or _other_groups(snapshot)


def _other_world(snapshot: JobSnapshot) -> Diagnosis | None:
    """Ranks that wait in ``init_process_group`` for more ranks than there are, or for another number.

    One that asked for fewer may be through, while others wait there or for it.
    """
    worlds = {one.rank: one.world or (one.default.size if one.default else 0) for one in snapshot.seen}
    asked = [one for one in snapshot.seen if worlds[one.rank] and one.started]
    fits = [one for one in asked if worlds[one.rank] == one.started]
    wrong = [one for one in asked if one.world > one.started or (fits and one not in fits)]
    if not wrong:
        return None
    culprits = snapshot.culprits({one.rank: _of_world(snapshot, one, worlds[one.rank]) for one in wrong})
    who = ranks_in_words(one.rank for one in wrong)
    said = f"{who} asked init_process_group for a world of {worlds[wrong[0].rank]} ranks; there are "
    said += f"{wrong[0].started}"
    remedy = "give init_process_group no rank and no world_size: it takes them from RANK and WORLD_SIZE"
    return Diagnosis(Verdict.MISMATCH, said, culprits, remedy=remedy)


def _of_world(snapshot: JobSnapshot, rank: RankSeen, size: int) -> str:
    doing = f"it waits in init_process_group{snapshot.line(rank.rank)} for" if rank.world else "it has joined"
    return f"{doing} a world of {size} ranks, and was started as one of {rank.started}"


def _other_rank(snapshot: JobSnapshot) -> Diagnosis | None:
    """Several ranks say that they are one and the same: right is the one that was started as it."""
    asked: dict[int, list[RankSeen]] = {}
    for one in snapshot.seen:
        if one.world and one.asks >= 0:
            asked.setdefault(one.asks, []).append(one)
    wrong = [one for rank, ranks in sorted(asked.items()) if ranks[1:] for one in ranks if one.rank != rank]
    if not wrong:
        return None
    waits = "it waits in init_process_group"
    whys = {one.rank: f"{waits}{snapshot.line(one.rank)} as rank {one.asks}" for one in wrong}
    first = wrong[0]
    said = f"rank {first.rank} on {first.node} says in init_process_group that it is rank {first.asks}, as "
    said += f"{ranks_in_words(one.rank for one in asked[first.asks] if one is not first)} does"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there"
    return Diagnosis(Verdict.MISMATCH, said, snapshot.culprits(whys), remedy=remedy)


def _other_store(snapshot: JobSnapshot) -> Diagnosis | None:
    """All wait in ``init_process_group``, but not at one address: most are right, of equal halves none."""
    places: dict[str, list[RankSeen]] = {}
    for one in snapshot.seen:
        if one.world and one.store:
            places.setdefault(one.store, []).append(one)
    if sum(map(len, places.values())) < snapshot.size:
        return None
    (where, most), *others = sorted(places.items(), key=lambda item: -len(item[1]))
    others = [(address, ranks) for address, ranks in others if not _may_be(where, address, ranks, snapshot)]
    if not others:
        return None
    known = len(most) > len(others[0][1])
    sides = [f"{ranks_in_words(one.rank for one in its)} at {at}" for at, its in ((where, most), *others)]
    whys = {
        one.rank: f"it looks for rank 0 at {address}, where the others look at {where}{_is(snapshot, one)}"
        for address, ranks in (others if known else ())
        for one in ranks
    }
    culprits = snapshot.culprits(whys)
    said = f"ranks wait for each other in init_process_group at different addresses: {'; '.join(sides)}"
    remedy = "leave MASTER_ADDR and MASTER_PORT as they are: every rank is given the same"
    return Diagnosis(Verdict.MISMATCH if known else Verdict.UNDETERMINED, said, culprits, remedy=remedy)


def _may_be(where: str, address: str, ranks: list[RankSeen], snapshot: JobSnapshot) -> bool:
    """Whether both may be one: on its own node, the machine of rank 0 has several names."""
    home = {one.node for one in snapshot.seen if one.rank == 0}
    same_port = where.rpartition(":")[2] == address.rpartition(":")[2]
    return same_port and {one.node for one in ranks} <= home


def _other_groups(snapshot: JobSnapshot) -> Diagnosis | None:
    """Ranks that make groups, and not the same ones in the same order: torch numbers them as they come.

    The one that contradicts all others is known where two and more of these are there.
    """
    if not snapshot.long_still or not any(one.makes for one in snapshot.seen):
        return None
    known = {one.rank: _groups_of(one) for one in snapshot.seen}
    apart = [
        (one.rank, two.rank, name)
        for one in snapshot.seen
        for two in snapshot.seen
        if one is not two
        for name, members in sorted(known[one.rank].items())
        if _contradicts(two, name, members, known[two.rank], name in one.makes[:1])
    ]
    if not apart:
        return None
    odd = [one for one in snapshot.seen if all(one.rank in pair[:2] for pair in apart)]
    passed = [one for one in odd if not one.makes]
    if len(passed) == 1 and 2 * sum(bool(one.makes) for one in snapshot.seen) > snapshot.size:
        odd = passed  # the others wait for it, and have come as far as each other
    culprits = snapshot.culprits({one.rank: _of_groups(snapshot, one, apart, known) for one in odd})
    said = "ranks do not make the same groups in the same order: "
    if len(odd) == 1:
        said = f"rank {odd[0].rank} on {odd[0].node} does not make the groups that the others make: "
        said += culprits[0].why
    else:
        one, two, name = apart[0]
        said += f"group {name} of rank {one} has {_members(known[one][name])}"
        other = known[two].get(name)
        said += f", that of rank {two} {_members(other)}" if other else f", and rank {two} made no such group"
    remedy = "let every rank call new_group for all groups, its own or not, in the same order"
    return Diagnosis(Verdict.MISMATCH, said, culprits if len(odd) == 1 else (), remedy=remedy)


def _groups_of(one: RankSeen) -> dict[str, str]:
    """The numbered groups that a rank is a member of, the one included that it makes, and their ranks."""
    found = {group.name: group.ranks for group in one.groups if not group.default}
    found.update([one.makes] if len(one.makes) == 2 else [])
    return {name: ranks for name, ranks in found.items() if name.isdigit() and ranks}


def _contradicts(two: RankSeen, name: str, members: str, known: dict[str, str], made_now: bool) -> bool:
    """Whether ``two`` made another group of that number, or has passed the one that waits for it."""
    if name in known:
        return known[name] != members
    return made_now and two.rank in unfolded(members) and two.made > int(name)


def _of_groups(
    snapshot: JobSnapshot, odd: RankSeen, apart: list[tuple[int, int, str]], known: dict[int, dict[str, str]]
) -> str:
    """In what it differs from the first rank that it contradicts."""
    one, two, name = next((pair for pair in apart if pair[0] != odd.rank), apart[0])
    other = one if one != odd.rank else two
    theirs = known[other].get(name, "")
    mine = known[odd.rank].get(name)
    its = f"its group {name} is of {_members(mine)}" if mine else f"it made no group {name} with itself in it"
    made = "" if mine or not snapshot.of(other).makes else snapshot.line(other)
    where = f"{its}, where that of rank {other} is of {_members(theirs)}"
    return where + (f", which waits for it{made}" if made else "") + _is(snapshot, odd)


def _is(snapshot: JobSnapshot, one: RankSeen) -> str:
    line = snapshot.line(one.rank)
    return f"; it is{line}" if line else ""


def _members(ranks: str | None) -> str:
    return ranks_in_words(unfolded(ranks or ""))


def not_in_new_group(
    snapshot: JobSnapshot, waits: Sequence[Waiting], absent: Sequence[RankSeen]
) -> Diagnosis | None:
    """All who have not come to a collective are in ``new_group``, where they wait for those who have.

    The few are odd; of equal halves either may be.
    """
    makes = [one for one in absent if one.default and place(one.stack).doing is Doing.RENDEZVOUS]
    all_of_them = len(makes) + len(waits) >= snapshot.size
    if not makes or len(makes) < max(len(absent), len(waits)) or not all_of_them:
        return None
    meets = place(makes[0].stack).operation
    there = [one.rank for one in makes]
    where = f"{ranks_in_words(there)} wait in {meets}{snapshot.line(*there)}"
    whys = {
        one.rank: f"it is in {one.record.operation}{snapshot.line(one.rank)} and has not called {meets}"
        for one in waits
    }
    culprits, inside = snapshot.culprits(dict(sorted(whys.items()))), sorted(whys)
    said = f"{where} for {ranks_in_words(inside)}"
    said += f", and {'it is' if len(inside) == 1 else 'they are'} in {waits[0].record.operation}"
    said += snapshot.line(*inside)
    known = len(makes) > len(waits)
    said += "" if known else ": nothing tells which of both is wrong"
    remedy = f"every rank must call {meets}, members of the new group or not, in the same order"
    return Diagnosis(Verdict.MISMATCH, said, culprits if known else (), (), snapshot.waited(waits), remedy)


def met_in_vain(snapshot: JobSnapshot) -> Diagnosis:
    """All seen stand in init_process_group, or in calls that nobody records."""
    here = place(snapshot.seen[0].stack)
    said = f"all ranks seen wait in {here.operation} at {here.line}"
    gone = sorted({*range(snapshot.size)} - {one.rank for one in snapshot.seen})
    if gone and not snapshot.mute and all(one.world == one.started == snapshot.size for one in snapshot.seen):
        said += f", for {ranks_in_words(gone)} as well, of which no process was left when they were looked "
        said += "for"
        remedy = f"how did it end? clusterrun logs --rank {gone[0]}; behind a pipe an exit code is lost: "
        remedy += "set -o pipefail"
        verdict = Verdict.NEVER_ARRIVED
    else:
        remedy = "clusterrun check tests the way to rank 0; is WORLD_SIZE what init_process_group is given?"
        verdict = Verdict.LINK if any(one.backlog for one in snapshot.seen) else Verdict.UNDETERMINED
    return Diagnosis(verdict if snapshot.long_still else Verdict.NOTHING, said, remedy=remedy)
