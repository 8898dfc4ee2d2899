"""Finds, of ranks that wait for each other, the one that skipped a call or made one too many; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.evidence import RankSeen, Record
from clusterrun.diagnosis.flight_records import HALF, KEY, LOCK, Waiting, members, sends, setting
from clusterrun.diagnosis.job_snapshot import JobSnapshot
from clusterrun.diagnosis.stack_location import short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.model.frozen import frozen

CUSTOM = 2
"""Times that a rank has come to a point before what it does there is its custom."""
LATELY = 4
"""Calls back from where it waits in which a rank's departure from its custom is looked for."""
START = ("", "")
"""What comes before the first call."""


@frozen
class _Turn:
    """A collective that a rank has begun, with the one before it and how many sends lay between them."""

    before: tuple[str, str]
    call: tuple[str, str]
    sends: int


def left_out(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """Members of a group are missing in its call and wait in one that has all its members and others.

    Either they left it out, or those in it are there too early or once too often. Who departs from what it
    did before is odd where the other side does not; else the fewer of those that the call is for.
    """
    if meant := _other_peer(snapshot, waits):
        return meant
    at = {one.rank: one for one in waits}
    pairs = [(rank, one) for one in waits for rank in one.missing if rank in at]
    found = {rank: one for rank, one in pairs if _is_wider(snapshot, at[rank], one)}
    found = {rank: one for rank, one in found.items() if one.rank not in found}
    if not found:
        return None
    disputes = []
    for call in dict.fromkeys(map(_call, found.values())):
        gone = [at[rank] for rank, one in sorted(found.items()) if _call(one) == call]
        disputes.append(([one for one in waits if _call(one) == call], gone))
    known = [(inside, gone, odd) for inside, gone in disputes if (odd := _odd(snapshot, inside, gone))]
    if not known:
        return _either(snapshot, waits, *disputes[0])
    whys = {one.rank: _why(snapshot, one, inside, gone) for inside, gone, odd in known for one in odd}
    culprits = snapshot.culprits(whys)
    first = culprits[0]
    left = known[0][2] is known[0][1]
    did = "went on without a call that others wait in" if left else "waits in a call that others do not make"
    said = f"rank {first.rank} on {first.node} {did}: {first.why}"
    remedy = "let all members of a group make its calls equally often, and in one order with other groups'"
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)


def _other_peer(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """One waits in a send or recv, no more of these than ever, for a rank that has never made any.

    Another one waits in the other half for it, as ever as well.
    """
    ends = [one for one in waits if not one.record.sequence]
    as_ever = {one.rank: one for one in ends if _departs(snapshot.of(one.rank), one) is False}
    for number, wait in as_ever.items():
        one = snapshot.of(number)
        mates = [snapshot.of(two) for two in as_ever if snapshot.of(two).peer == number and two != number]
        mates = [two for two in mates if {one.call, two.call} == {"send", "recv"} and two.rank != one.peer]
        never = [two for two in snapshot.seen if two.rank == one.peer and two.answered and not sends(two)]
        if len(mates) != 1 or not never:
            continue
        mate = as_ever[mates[0].rank]
        why = f"it waits in {_named(wait)}{snapshot.line(number)}, which has never sent or received; "
        why += f"rank {mate.rank} waits for it in {_named(mate)}{snapshot.line(mate.rank)}"
        said = f"rank {number} on {one.node} names another rank than the one that it meets: {why}"
        remedy = "let each send name as dst who receives it, and each recv as src who sends it"
        culprits = snapshot.culprits({number: why})
        return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)
    return None


def unset_key(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """Ranks wait for a key of the store, and the only one whose lines set it waits as well, past them."""
    at = {one.rank for one in waits}
    keyed = [one for one in waits if one.record.operation == KEY and set(one.missing) <= at]
    whys: dict[int, str] = {}
    for one in keyed:
        (rank,), key = one.missing, snapshot.of(one.rank).key
        line, under = setting(snapshot.of(rank), key)
        if line:
            its = f"its key of the store (of {key})" if ", " in key else f"the key {key} of the store"
            why = f"it has not set {its}, which {short(line)} sets"
            why += f" under '{under}', which does not hold there" if under else ""
            gone = snapshot.of(rank).call != "store"
            whys[rank] = f"{why}, though it has gone on{snapshot.line(rank)}" if gone else why
    if not whys:
        return None
    culprits = snapshot.culprits(dict(sorted(whys.items())))
    first = culprits[0]
    who = ranks_in_words(one.rank for one in keyed)
    said = f"{who} wait{'s' if len(keyed) == 1 else ''} for a key of the store that rank {first.rank} on "
    said += f"{first.node} sets: {first.why}"
    remedy = "under which condition does it come to that line? let every rank set what others wait for"
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)


def _is_wider(snapshot: JobSnapshot, there: Waiting, here: Waiting) -> bool:
    """Whether a call takes more than another; of a world of two a send takes as many as a collective."""
    more, few = _awaited(snapshot, there), _awaited(snapshot, here)
    return few < more or (few == more and there.record.sequence > 0 and not here.record.sequence)


def _call(one: Waiting) -> tuple[str, int, str]:
    return one.record.group, one.record.sequence, one.record.operation


def _odd(snapshot: JobSnapshot, inside: list[Waiting], gone: list[Waiting]) -> list[Waiting]:
    """Which side of a dispute is odd: those in the call, or who has gone on; [] where nothing tells."""
    here = {_departs(snapshot.of(one.rank), one) for one in inside}
    there = {_departs(snapshot.of(one.rank), one) for one in gone}
    if (here, there) in (({True}, {False}), ({False}, {True})):
        return inside if True in here else gone
    if _skipped_in_turn(snapshot, inside, gone):
        return gone
    came, stayed = _votes(snapshot, inside[0], gone)
    return gone if came > stayed else inside if came < stayed else []


def _skipped_in_turn(snapshot: JobSnapshot, inside: list[Waiting], gone: list[Waiting]) -> bool:
    """Whether a call always came after so many calls of the other group, also to those who are in it now.

    Who has gone on waits in what had always followed that call, one such turn after the last one.
    """
    narrow, wide = inside[0].record.group, gone[0].record.group
    turns = {one.rank: _before_each(snapshot.of(one.rank), narrow, wide) for one in (*inside, *gone)}
    if not all(len(counts) > CUSTOM and len(_steps(counts)) == 1 for counts in turns.values()):
        return False
    for one in gone:
        counts = turns[one.rank]
        shapes = {it.sequence: _shape(it) for it in snapshot.of(one.rank).records if it.group == wide}
        due = counts[-1] + _steps(counts).pop()
        follow = {shapes.get(count + 1) for count in counts}
        if one.record.sequence != due + 1 or follow != {_shape(one.record)}:
            return False
    return True


def _before_each(rank: RankSeen, narrow: str, wide: str) -> list[int]:
    """How many calls of one group a rank had begun before each of its calls of another, as far as is kept."""
    others = [one for one in rank.records if one.group == wide]
    starts = [one.at for one in rank.records if one.group == narrow]
    found = [max((other.sequence for other in others if other.at < at), default=-1) for at in starts]
    return [count for count in found if count >= 0]


def _steps(counts: list[int]) -> set[int]:
    return {after - before for before, after in zip(counts, counts[1:])}


def _shape(one: Record) -> tuple[str, str, str]:
    return one.operation, one.sizes, one.types


def alone_departs(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Waiting | None:
    """The only rank that does what it never did there before, where all others are known to do as ever."""
    departs = [_departs(snapshot.of(one.rank), one) for one in waits]
    known = len(waits) == snapshot.size and departs.count(True) == 1 and None not in departs
    return waits[departs.index(True)] if known else None


def alone_departed(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> tuple[Waiting, str] | None:
    """The only rank that lately called what it never did after that call, and how; others did as ever."""
    found = [(one, _departed(snapshot.of(one.rank), one)) for one in waits]
    odd = [(one, how) for one, how in found if how]
    known = len(waits) == snapshot.size and all(how is not None for _, how in found)
    return odd[0] if known and len(odd) == 1 else None


def _departed(rank: RankSeen, where: Waiting) -> str | None:
    """The newest departure from its custom among the last calls of a rank; '' none, None: not known."""
    turns = _turns(sorted(rank.records, key=lambda one: one.at))
    if not where.record.sequence or len(turns) <= LATELY:
        return None
    for place in range(len(turns) - 1, len(turns) - 1 - LATELY, -1):
        now, past = turns[place], _past(turns[:place], turns[place].before)
        calls = [turn.call for turn in past]
        if len(past) < CUSTOM or all(turn.call != now.call for turn in turns[:place]):
            return None
        if now.call not in calls:
            usual = " or ".join(map(_of_group, dict.fromkeys(calls)))
            after = f"after {_of_group(now.before)}, where it had always called {usual}"
            return f"it called {_of_group(now.call)} {after}"
    return ""


def _of_group(call: tuple[str, str]) -> str:
    return f"{call[1]} of group {call[0]}"


def _votes(snapshot: JobSnapshot, one: Waiting, gone: list[Waiting]) -> tuple[int, int]:
    """How many of a group have made its call, and how many have not; of groups like it as well."""
    if one.record.operation == KEY:
        return 2, 1  # a wait for a key is none too many: one who sets it is missing
    if one.record.operation == HALF:
        equal = sum(sends(other) == sends(snapshot.of(one.rank)) for other in snapshot.seen)
        return equal, len(gone)
    mine = _awaited(snapshot, one)
    like = [
        max((record.sequence for record in other.records if record.group == group.name), default=0)
        for other in snapshot.seen
        for group in other.groups
        if group.size == len(mine) and not mine & set(members(other, group.name, snapshot.seen))
    ]
    came = sum(number >= one.record.sequence > 0 for number in like)
    return len(mine) - len(one.missing) + came, len(one.missing) + len(like) - came


def _departs(rank: RankSeen, where: Waiting) -> bool | None:
    """Whether a rank does where it stands what it never did there before; None: it came there too rarely.

    A call that it has never made begins something new, and is no departure.
    """
    records = sorted(rank.records, key=lambda one: one.at)
    turns = _turns(records)
    if where.record.sequence:
        place = next((place for place, one in enumerate(records) if one == where.record), 0)
        now, turns = turns[place], turns[:place]
        past = _past(turns, now.before)
        known = len(past) >= CUSTOM and now.sends >= 0 and any(turn.call == now.call for turn in turns)
        return (now.call, now.sends) not in [(turn.call, turn.sends) for turn in past] if known else None
    last = records[-1] if records else None
    group = next((one for one in rank.groups if last and one.name == last.group), None)
    if last is None or group is None or group.backend != "gloo" or not last.begun:
        return None
    counts = [turn.sends for turn in _past(turns, (last.group, last.operation))]
    known = len(counts) >= CUSTOM and max(counts) > 0
    return group.sequence - last.begun > max(counts) if known else None


def _past(turns: list[_Turn], before: tuple[str, str]) -> list[_Turn]:
    """The turns from this call on; of a loop with one call that has hardly begun, the first one as well."""
    past = [turn for turn in turns if turn.before == before and turn.sends >= 0]
    first = [turn for turn in turns if (turn.before, turn.call) == (START, before) and turn.sends >= 0]
    one_call = len(past) < CUSTOM and all(turn.call == before for turn in past)
    return [*first, *past] if one_call else past


def _turns(records: Sequence[Record]) -> list[_Turn]:
    """The records as turns; ``sends`` is -1 where the one before is not kept, 0 if nobody counts them."""
    begun: dict[str, tuple[int, int]] = {}
    found = []
    before = START
    for one in records:
        number, sequence = begun.get(one.group, (0, 0))
        count = one.begun - number - 1 if sequence + 1 == one.sequence else -1
        found.append(_Turn(before, (one.group, one.operation), count if one.begun else 0))
        begun[one.group] = (one.begun, one.sequence)
        before = one.group, one.operation
    return found


def _why(snapshot: JobSnapshot, odd: Waiting, inside: list[Waiting], gone: list[Waiting]) -> str:
    """What an odd one does, said of itself."""
    line = snapshot.line(odd.rank)
    if odd in gone:
        one = [one for one in inside if odd.rank in one.missing][-1]
        return f"it is in {odd.record.operation}{line} and {_not_done(snapshot, one)}"
    others = ranks_in_words(odd.missing)
    there = f"{gone[0].record.operation}{snapshot.line(*(one.rank for one in gone))}"
    return f"it waits in {_named(odd)}{line} for {others}, in {there}: it came too early, or once too often"


def _either(
    snapshot: JobSnapshot, waits: Sequence[Waiting], inside: list[Waiting], gone: list[Waiting]
) -> Diagnosis:
    """Nothing tells which of both is wrong: both are told, and nobody is blamed."""
    here, there = ([one.rank for one in side] for side in (inside, gone))
    callers, others = ranks_in_words(here), ranks_in_words(there)
    said = f"{callers} wait{'s' if len(here) == 1 else ''} in {_named(inside[0])}{snapshot.line(*here)} for "
    said += f"{others}, in {gone[0].record.operation}{snapshot.line(*there)}: either {others} left out "
    said += f"{half(inside[0])}, or {callers} made a call too many; what is left does not tell"
    remedy = "compare how often each of both comes to its line, and under which condition"
    return Diagnosis(Verdict.MISMATCH, said, (), (), snapshot.waited(waits), remedy)


def _named(one: Waiting) -> str:
    operation = one.record.operation
    return f"{operation} of group {one.record.group}" if one.record.sequence else operation


def _not_done(snapshot: JobSnapshot, one: Waiting) -> str:
    """What ``one`` waits for, said of who should have done it."""
    line = snapshot.line(one.rank)
    if one.record.operation == KEY:
        key = f"the key {found}" if (found := snapshot.of(one.rank).key) else "the key"
        return f"has not set {key} of the store that rank {one.rank} waits for{line}"
    return f"has not called {half(one)}, in which rank {one.rank} waits for it{line}"


def _awaited(snapshot: JobSnapshot, one: Waiting) -> set[int]:
    """The ranks that take part in the call that ``one`` waits in."""
    return set(members(snapshot.of(one.rank), one.record.group, snapshot.seen)) or {one.rank, *one.missing}


def half(one: Waiting) -> str:
    """What the missing rank should have called."""
    counterparts = {
        HALF: f"the other half of {HALF}",
        KEY: "set for a key of the store",
        LOCK: "the release of that lock",
        "send": f"recv from rank {one.rank}",
        "recv": f"send to rank {one.rank}",
    }
    verb = one.record.operation.partition(" ")[0]
    other = counterparts.get(one.record.operation) or counterparts.get(verb)
    return other or f"{one.record.operation} of group {one.record.group}"
