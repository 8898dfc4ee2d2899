"""Joins all ranks' flight records on (group, sequence number): who waits for whom, who differs; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterrun.diagnosis.evidence import Group, RankSeen, Record
from clusterrun.diagnosis.stack_location import Doing, place
from clusterrun.diagnosis.verdict import unfolded
from clusterrun.model.frozen import frozen

HALF = "a send or receive"
"""What a rank waits in that has begun one of these without waiting for it."""
KEY = "a wait for a key of the store"
LOCK = "a wait for the lock of a file"
EQUAL_SIZES = (
    *("all_reduce", "reduce", "broadcast", "gather"),
    *("all_gather", "_all_gather_base", "_reduce_scatter_base"),
)
"""Where every rank brings a tensor of one size and type; of other collectives only the names are compared."""


@frozen
class Waiting:
    """``rank`` has begun a collective and not left it; ``missing`` are members that have not begun it."""

    rank: int
    record: Record
    missing: tuple[int, ...]


@frozen
class Side:
    ranks: tuple[int, ...]
    record: Record

    @property
    def called(self) -> str:
        """``all_reduce of [4] Float``."""
        what = " ".join(filter(None, (self.record.sizes, self.record.types)))
        return f"{self.record.operation} of {what}" if what else self.record.operation


def waiting(ranks: Sequence[RankSeen]) -> list[Waiting]:
    """Every rank in a collective, at its oldest one that is not done, or in a send or receive, by rank."""
    begun = _begun(ranks)
    others = tuple(one.rank for one in ranks if one.call != "store")
    found = []
    for one in ranks:
        inside = [record for record in one.records if not record.done]
        if one.call and one.peer >= 0:
            found.append(_with_peer(one, ranks))
        elif one.call == "wait" and not inside and sends(one):
            found.append(_unrecorded(one, HALF, _behind(one, ranks)))
        elif one.call == "store" and len(whose := setters(one, ranks) or others) == 1:
            found.append(_unrecorded(one, KEY, whose))
        elif inside:
            record = min(inside, key=lambda r: r.at)
            mates = [mate for mate in members(one, record.group, ranks) if mate != one.rank]
            behind = (mate for mate in mates if begun.get((mate, record.group), 0) < record.sequence)
            found.append(Waiting(one.rank, record, tuple(behind)))
        elif holder := _holder(one, ranks):
            found.append(_unrecorded(one, LOCK, holder))
    return found


def _unrecorded(rank: RankSeen, what: str, missing: tuple[int, ...], group: str = "") -> Waiting:
    return Waiting(rank.rank, Record(group, 0, what, "", "", False, 0.0), missing)


def _holder(one: RankSeen, ranks: Sequence[RankSeen]) -> tuple[int, ...]:
    """The rank that holds the lock of a file which another one waits for, where it waits for others itself.

    One that works, loads or reads while it holds the lock will give it back.
    """
    found = [two for two in ranks if (two.node, two.pid) == (one.node, one.lock_holder) and two is not one]
    waits = (Doing.COLLECTIVE, Doing.RENDEZVOUS)
    return tuple(two.rank for two in found if place(two.stack).doing in waits)


def setters(rank: RankSeen, ranks: Sequence[RankSeen]) -> tuple[int, ...]:
    """Whose lines set a key of the store that ``rank`` waits for.

    Who waits for it as well is not to set it where others are; who passed its line by has not set it.
    """
    found = [one for one in ranks if rank.key and setting(one, rank.key)[0]]
    found = [one for one in found if (one.call, one.key) != ("store", rank.key)] or found
    passed = [one for one in found if setting(one, rank.key)[1]]
    return tuple(one.rank for one in (passed if len(passed) == 1 else found))


def setting(rank: RankSeen, keys: str) -> tuple[str, str]:
    """``FILE:LINE`` at which a rank would set one of these keys of the store, '' where it is not known.

    And the condition that kept it from that line, if one did.
    """
    lines = [one.split("\t") for one in rank.sets]
    found = [(line, "".join(under)) for line, key, *under in lines if key in keys.split(", ")]
    return min(found, key=lambda one: one[1] != "", default=("", ""))


def _with_peer(rank: RankSeen, ranks: Sequence[RankSeen]) -> Waiting:
    """A send or receive is a collective of two that no recorder knows: has the other one called its half?"""
    fits = {"send": "recv", "recv": "send"}[rank.call]
    meets = any(two.rank == rank.peer and (two.call, two.peer) == (fits, rank.rank) for two in ranks)
    group = f"of ranks {min(rank.rank, rank.peer)} and {max(rank.rank, rank.peer)}"
    what = f"{rank.call} {'to' if rank.call == 'send' else 'from'} rank {rank.peer}"
    return _unrecorded(rank, what, () if meets else (rank.peer,), group)


def _behind(rank: RankSeen, ranks: Sequence[RankSeen]) -> tuple[int, ...]:
    """It waits for what ``isend`` or ``irecv`` began: who has begun fewer of these has not answered it.

    That is known where one other rank uses them, or where all that do have begun the same number but one.
    """
    counts = {two.rank: sends(two) for two in ranks if two.rank != rank.rank and sends(two)}
    behind = [other for other, count in counts.items() if count < sends(rank)]
    equal = [other for other, count in counts.items() if count == sends(rank)]
    known = len(counts) == 1 or (len(equal) > 1 and len(equal) + 1 == len(counts))
    return tuple(behind) if known else ()


def sends(rank: RankSeen) -> int:
    """How many sends and receives a rank has begun over gloo, which counts them and does not record them."""
    of_gloo = [group for group in rank.groups if group.backend == "gloo" and group.sequence >= 0]
    recorded = {record.group: record.sequence for record in rank.records}
    return sum(max(0, group.sequence - recorded.get(group.name, 0)) for group in of_gloo)


def counted(ranks: Sequence[RankSeen], at: float) -> list[Waiting]:
    """Who waits by the groups' own counts, where no record tells: some members have begun more than others.

    ``at`` is since when, in seconds since the epoch. Only where no count includes sends: gloo's does.
    """
    found = []
    for one in ranks:
        for group in one.groups:
            counts = _counts(group, ranks)
            ahead = max(counts.values(), default=0)
            missing = tuple(sorted(rank for rank, count in counts.items() if count < ahead))
            if missing and one.rank not in missing and "gloo" not in group.backend:
                record = Record(group.name, ahead, "a collective", "", "", False, at)
                found.append(Waiting(one.rank, record, missing))
                break
    return found


def _counts(group: Group, ranks: Sequence[RankSeen]) -> dict[int, int]:
    """How many collectives each member has begun in ``group``; {} unless every one of them says it."""
    members = {
        one.rank: other.sequence
        for one in ranks
        for other in one.groups
        if (other.name, other.ranks, other.size) == (group.name, group.ranks, group.size)
    }
    complete = len(members) == group.size and min(members.values()) >= 0
    return members if complete else {}


def shortest_timeout(ranks: Sequence[RankSeen]) -> float:
    """Of the groups that ranks wait in, the smallest time-out in seconds; 0: none, or unknown."""
    waits = {one.rank: one.record.group for one in waiting(ranks)}
    unrecorded = any(one.rank not in waits and place(one.stack).doing is Doing.COLLECTIVE for one in ranks)
    known = [(one.rank, group) for one in ranks for group in one.groups if group.timeout]
    limited = (group for rank, group in known if unrecorded or _same(group, waits.get(rank, "")))
    return min((group.timeout for group in limited), default=0.0)


def _begun(ranks: Sequence[RankSeen]) -> Mapping[tuple[int, str], int]:
    """How far each rank is in each group: as its records say, for gloo's own number counts sends as well."""
    found: dict[tuple[int, str], int] = {}
    known = {record.group for one in ranks for record in one.records}
    for one in ranks:
        for group in one.groups:
            # Who has no record of a group of which others have some has begun nothing but sends in it.
            only_sends = group.backend == "gloo" and group.name in known
            found[one.rank, group.name] = 0 if only_sends else group.sequence
        found.update({(one.rank, group): 0 for group in {record.group for record in one.records}})
        for record in one.records:
            at = one.rank, record.group
            found[at] = max(found[at], record.sequence)
    return found


def members(rank: RankSeen, name: str, ranks: Sequence[RankSeen]) -> tuple[int, ...]:
    """The ranks of the group called ``name`` that ``rank`` is in, as far as it is known."""
    group = next((group for group in rank.groups if _same(group, name)), None)
    named = unfolded(group.ranks) if group else ()
    if named:
        return named
    if group and group.size == len(ranks):
        return tuple(other.rank for other in ranks)
    return tuple(other.rank for other in ranks if any(_same(g, name) for g in other.groups))


def _same(group: Group, name: str) -> bool:
    """A group of two backends has two counts, of which the second is told as ``NAME (gloo)``."""
    return name in (group.name, f"{group.name} (gloo)")


def roots(waits: Sequence[Waiting]) -> tuple[int, ...]:
    """Ranks that others wait for and that are in no collective themselves."""
    inside = {one.rank for one in waits}
    return tuple(sorted({rank for one in waits for rank in one.missing} - inside))


def difference(ranks: Sequence[RankSeen]) -> Sequence[Side]:
    """The first place, in time, where members of a group did not call the same; the largest side first."""
    places: dict[tuple[str, str, int], dict[int, Record]] = {}
    for one in ranks:
        spans = {group.name: group.ranks for group in one.groups}
        for record in one.records:
            key = (record.group, spans.get(record.group, ""), record.sequence)
            places.setdefault(key, {})[one.rank] = record
    found = [sides for records in places.values() if len(sides := _sides(records)) > 1]
    return min(found, key=lambda sides: min(side.record.at for side in sides), default=())


def _sides(records: Mapping[int, Record]) -> list[Side]:
    by_call: dict[tuple[str, ...], list[int]] = {}
    for rank, record in records.items():
        sized = record.operation in EQUAL_SIZES
        call = (record.operation, record.sizes if sized else "", record.types if sized else "")
        by_call.setdefault(call, []).append(rank)
    sides = [Side(tuple(sorted(ranks)), records[ranks[0]]) for ranks in by_call.values()]
    return sorted(sides, key=lambda side: (-len(side.ranks), side.ranks))
