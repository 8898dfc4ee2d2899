"""Ranks that wait for each other in ``init_process_group``: who asked for something else; pure."""

from __future__ import annotations

from clusterrun.diagnosis.stack_location import place
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.diagnosis.evidence import RankSeen
    from clusterrun.diagnosis.job_snapshot import JobSnapshot


def other_world(snapshot: JobSnapshot) -> Diagnosis | None:
    """Ranks that wait in ``init_process_group`` for more ranks than there are, or for another number.

    One that asked for fewer may be through, while others wait there or for it.
    """
    worlds = {one.rank: one.world or (one.default.size if one.default else 0) for one in snapshot.seen}
    asked = [one for one in snapshot.seen if worlds[one.rank] and one.started]
    fits = [one for one in asked if worlds[one.rank] == one.started]
    wrong = [one for one in asked if one.world > one.started or (fits and one not in fits)]
    if not wrong:
        return None
    culprits = tuple(Culprit(one.rank, one.node, _of_world(snapshot, one, worlds[one.rank])) for one in wrong)
    who = ranks_in_words(tuple(one.rank for one in wrong))
    said = (
        f"{who} asked init_process_group for a world of {worlds[wrong[0].rank]} ranks; "
        f"there are {wrong[0].started}"
    )
    remedy = "give init_process_group no rank and no world_size: it takes them from RANK and WORLD_SIZE"
    return Diagnosis(Verdict.MISMATCH, said, culprits, remedy=remedy)


def _of_world(snapshot: JobSnapshot, rank: RankSeen, size: int) -> str:
    doing = (
        f"it waits in init_process_group{snapshot.line((rank.rank,))} for" if rank.world else "it has joined"
    )
    return f"{doing} a world of {size} ranks, and was started as one of {rank.started}"


def other_rank(snapshot: JobSnapshot) -> Diagnosis | None:
    """Several ranks say that they are one and the same: right is the one that was started as it."""
    asked: dict[int, list[RankSeen]] = {}
    for one in snapshot.seen:
        if one.world and one.asks >= 0:
            asked.setdefault(one.asks, []).append(one)
    wrong = [
        one for rank, ranks in sorted(asked.items()) if len(ranks) > 1 for one in ranks if one.rank != rank
    ]
    if not wrong:
        return None
    culprits = tuple(
        Culprit(
            one.rank,
            one.node,
            f"it waits in init_process_group{snapshot.line((one.rank,))} as rank {one.asks}",
        )
        for one in wrong
    )
    first = wrong[0]
    said = f"rank {first.rank} on {first.node} says in init_process_group that it is rank {first.asks}, as "
    said += f"{ranks_in_words(tuple(one.rank for one in asked[first.asks] if one is not first))} does"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there"
    return Diagnosis(Verdict.MISMATCH, said, culprits, remedy=remedy)


def other_store(snapshot: JobSnapshot) -> Diagnosis | None:
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
    sides = [
        f"{ranks_in_words(tuple(one.rank for one in ranks))} at {address}"
        for address, ranks in ((where, most), *others)
    ]
    culprits = tuple(
        Culprit(one.rank, one.node, f"it looks for rank 0 at {address}, where the others look at {where}")
        for address, ranks in (others if known else ())
        for one in ranks
    )
    said = f"ranks wait for each other in init_process_group at different addresses: {'; '.join(sides)}"
    remedy = "leave MASTER_ADDR and MASTER_PORT as they are: every rank is given the same"
    return Diagnosis(Verdict.MISMATCH if known else Verdict.UNDETERMINED, said, culprits, remedy=remedy)


def _may_be(where: str, address: str, ranks: list[RankSeen], snapshot: JobSnapshot) -> bool:
    """Whether both may be one: on its own node, the machine of rank 0 has several names."""
    home = {one.node for one in snapshot.seen if one.rank == 0}
    same_port = where.rpartition(":")[2] == address.rpartition(":")[2]
    return same_port and {one.node for one in ranks} <= home


def met_in_vain(snapshot: JobSnapshot) -> Diagnosis:
    """All seen stand in init_process_group, or in calls that nobody records."""
    here = place(snapshot.seen[0].stack)
    said = f"all ranks seen wait in {here.operation} at {here.line}"
    remedy = "clusterrun check tests the way to rank 0; is WORLD_SIZE what init_process_group is given?"
    verdict = Verdict.LINK if any(one.backlog for one in snapshot.seen) else Verdict.UNDETERMINED
    return Diagnosis(verdict if snapshot.long_still else Verdict.NOTHING, said, remedy=remedy)
