"""Decides from a snapshot of all ranks what is wrong and which ranks are to blame, or undetermined; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.evidence import RankSeen
from clusterrun.diagnosis.explanations import has_ended, reason
from clusterrun.diagnosis.flight_records import Side, Waiting, counted, difference, roots, waiting
from clusterrun.diagnosis.job_snapshot import PATIENCE, STOPPED, USUAL, JobSnapshot, called
from clusterrun.diagnosis.left_out_calls import half, unset_key
from clusterrun.diagnosis.processes_below import below_ranks
from clusterrun.diagnosis.stack_location import Doing, place
from clusterrun.diagnosis.stragglers import find_straggler
from clusterrun.diagnosis.stuck_calls import crossed, held_locks, other_arguments, other_posts, unended
from clusterrun.diagnosis.stuck_rendezvous import met_in_vain, not_in_new_group, other_request
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.model.frozen import frozen, replace

START_PATIENCE = 60.0
"""Seconds without movement until ranks are blamed that import, or work before they are in any group."""
MOST = 4
"""Ranks of whom one line each is said."""


@frozen
class Judgement:
    """A diagnosis; ``certain`` is false where a longer look might change it, one that ends ``later`` (s)."""

    diagnosis: Diagnosis
    certain: bool = True
    later: float = 0.0


def decide(snapshot: JobSnapshot) -> Judgement:
    waits = waiting(snapshot.seen)
    if not waits and snapshot.stalled and not any(one.records for one in snapshot.seen):
        now = max((one.clock for one in snapshot.seen), default=0.0)
        waits = counted(snapshot.seen, now - snapshot.stalled)
    found = _stopped(snapshot, waits) or _moving(snapshot, waits) or _differing(snapshot, waits)
    found = found or other_request(snapshot) or _absent(snapshot, waits) or _together(snapshot, waits)
    found = found or _elsewhere(snapshot)
    judged = found if isinstance(found, Judgement) else Judgement(found)
    evidence = (*judged.diagnosis.evidence, *snapshot.circumstances())
    return replace(judged, diagnosis=replace(judged.diagnosis, groups=snapshot.stacks(), evidence=evidence))


def _stopped(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """A rank that is stopped or has ended while others wait, or that nobody may wait for but is stopped."""
    missing = {rank for one in waits for rank in one.missing}
    left = [place(one.stack).doing for one in snapshot.seen if one.state]
    # Where no records tell: every rank that is left stands in a collective.
    all_wait = set(left) == {Doing.COLLECTIVE}
    ended = [one for one in snapshot.seen if not one.state and (all_wait or one.rank in missing)]
    found = [one for one in snapshot.seen if one.state in STOPPED or one in ended]
    if not found:
        return None
    absent = missing - {one.rank for one in found} - {one.rank for one in waits}
    return _blame(snapshot, found, waits, [one for one in snapshot.seen if one.rank in absent])


def _moving(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Judgement | Diagnosis | None:
    """Something happens: no hang, though perhaps one whom all wait for."""
    awaited = {rank for one in waits for rank in one.missing}
    works = [
        one for one in snapshot.seen if one.moved or (one.printed and (not waits or one.rank in awaited))
    ]
    if snapshot.stalled or not works:
        return None
    slow = find_straggler(snapshot.seen, dict(snapshot.offsets))
    if slow is None:
        said = "the ranks are making progress"
        shown = _progress(snapshot)
        if awaited and not any(one.moved for one in snapshot.seen):
            said = f"the others wait for {ranks_in_words(one.rank for one in works)}, still printing"
            shown = (*snapshot.waited(waits), *_reasons(works))
        return Judgement(Diagnosis(Verdict.NOTHING, said, evidence=shown), certain=not awaited)
    rank = snapshot.of(slow.rank)
    said = f"the others wait for rank {slow.rank} on {rank.node} {slow.share * 100:.0f} % of the time"
    last = f"it came last to {slow.last} of the last {slow.of} that were waited for"
    last += f", within {slow.seconds:.1f} s"
    remedy = "has every rank the same work? if so: clusterrun check compares that node with others"
    why = f"it is slow: {last}"
    if place(rank.stack).doing is Doing.USER:
        why += f"; when it was looked at it stood{snapshot.line(slow.rank)}"
    return Diagnosis(Verdict.SLOW, said, snapshot.culprits({slow.rank: why}), evidence=(last,), remedy=remedy)


def _progress(snapshot: JobSnapshot) -> tuple[str, ...]:
    first = snapshot.seen[0]
    count = sum(record.at >= first.clock - first.seconds for record in first.records)
    if not count:
        return ()
    said = f"rank {first.rank} began {count} collectives within {first.seconds:.1f} s"
    return (said, f"the longest pause between two of the last ones was {snapshot.longest_pause:.1f} s")


def _differing(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """Ranks that called different things at the same place."""
    sides = difference(snapshot.seen) if waits else ()
    if not sides:
        return other_arguments(snapshot, waits)
    majority, *others = sides
    where = called(replace(majority.record, operation="collective"))
    lines = [
        f"{ranks_in_words(side.ranks)} called {side.called}{snapshot.line(*side.ranks)}" for side in sides
    ]
    odd = others if len(majority.ranks) > len(others[0].ranks) else sides
    culprits = snapshot.culprits({it: _called(snapshot, sides, it) for side in odd for it in side.ranks})
    said = f"ranks called different collectives: {lines[0]}, "
    said += "; ".join(f"{ranks_in_words(side.ranks)} {side.called}" for side in others)
    remedy = "let every rank call the same collectives, in the same order, with equal shapes and types"
    evidence = tuple(f"{where}: {line}" for line in lines)
    return Diagnosis(Verdict.MISMATCH, said, culprits, evidence=evidence, remedy=remedy)


def _called(snapshot: JobSnapshot, sides: Sequence[Side], rank: int) -> str:
    mine = next(side for side in sides if rank in side.ranks)
    others = next(side for side in sides if rank not in side.ranks)
    where = f"where {ranks_in_words(others.ranks)} called {others.called}"
    return f"it called {mine.called}{snapshot.line(rank)} {where}"


def _absent(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Judgement | Diagnosis | None:
    """Ranks that others wait for, and that wait for nobody."""
    missing = roots(waits)
    found = [one for one in snapshot.seen if one.rank in missing]
    if not found and not missing:
        found = _apart(snapshot, waits)
    outside = [one for one in found if place(one.stack).doing is not Doing.COLLECTIVE]
    # Who makes a group of some of them waits as well.
    held = [one for one in outside if one.default is None or place(one.stack).doing is not Doing.RENDEZVOUS]
    found = held or outside or found
    if not found:
        return _unseen(snapshot, waits)
    later = snapshot.blameless_for(_patience(snapshot, found, waits))
    if snapshot.stalled and all(_begins(one) and one.works and one.groups for one in found):
        later = max(0.0, START_PATIENCE - snapshot.stalled)
    if later and not any(reason(one).certain for one in found):
        said = f"the others wait for {ranks_in_words(one.rank for one in found)}, which may yet come"
        evidence = (*snapshot.waited(waits), *_reasons(found))
        return Judgement(Diagnosis(Verdict.NOTHING, said, evidence=evidence), certain=False, later=later)
    return not_in_new_group(snapshot, waits, found) or _blame(snapshot, found, waits)


def _patience(snapshot: JobSnapshot, ranks: Sequence[RankSeen], waits: Sequence[Waiting]) -> float:
    """Seconds without movement until ``found`` are blamed: less for who waits in another call."""
    if all(_begins(one) or _prepares(one) for one in ranks):
        return START_PATIENCE
    works = any(place(one.stack).doing not in (Doing.COLLECTIVE, Doing.RENDEZVOUS) for one in ranks)
    return snapshot.patience(waits, ranks) if works else max(PATIENCE, USUAL * snapshot.longest_pause)


def _begins(rank: RankSeen) -> bool:
    """It imports and has finished no collective yet, or works before it is in any group."""
    imports = place(rank.stack).doing is Doing.IMPORT and not any(record.done for record in rank.records)
    return imports or (rank.works and not rank.groups)


def _prepares(rank: RankSeen) -> bool:
    """It has told that it is in no group yet, and does something else than to join one."""
    return rank.answered and not rank.groups and place(rank.stack).doing is Doing.USER


def _apart(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> list[RankSeen]:
    """Without records: those that are outside while others stand in a collective or a rendezvous."""
    inside = {one.rank for one in waits}
    within = (Doing.COLLECTIVE, Doing.RENDEZVOUS)
    inside |= {one.rank for one in snapshot.seen if place(one.stack).doing in within}
    outside = [one for one in snapshot.seen if one.rank not in inside]
    known = any(one.records for one in snapshot.seen)
    return outside if inside and not known and len(outside) < len(snapshot.seen) else []


def _unseen(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """Everybody who waits waits for ranks of nodes that did not answer."""
    missing = {rank for one in waits for rank in one.missing} - {one.rank for one in snapshot.seen}
    if not snapshot.mute or not missing:
        return None
    culprits = tuple(Culprit(-1, node, why) for node, why in snapshot.mute)
    nodes = ", ".join(node for node, _ in snapshot.mute)
    said = f"the others wait for {ranks_in_words(missing)}; nothing is heard from {nodes}"
    remedy = "is that node alive? sinfo -R, and clusterrun check"
    return Diagnosis(Verdict.NEVER_ARRIVED, said, culprits, (), snapshot.waited(waits), remedy)


def _together(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Judgement | Diagnosis | None:
    if not waits:
        return None
    stuck = [one for one in waits if not one.missing]
    if snapshot.long_still:
        found = unset_key(snapshot, waits) or held_locks(snapshot, waits) or other_posts(snapshot)
        if found:
            return found
    if not stuck:
        return crossed(snapshot, waits)
    if not snapshot.owed and not snapshot.long_still:
        said = "all ranks are in a collective that may yet end"
        return Judgement(Diagnosis(Verdict.NOTHING, said, evidence=snapshot.waited(waits)), certain=False)
    return unended(snapshot, waits, stuck)


def _elsewhere(snapshot: JobSnapshot) -> Judgement | Diagnosis:
    """Nobody is in a collective that we know of, and nothing has moved."""
    doing = {place(one.stack).doing for one in snapshot.seen}
    if doing == {Doing.RENDEZVOUS} or doing == {Doing.COLLECTIVE}:
        return Judgement(met_in_vain(snapshot), certain=snapshot.long_still)
    busy = [one for one in snapshot.seen if one.works]
    if busy and snapshot.stalled and any(one.may_spin for one in busy):
        return _busy_without_progress(snapshot, busy)
    if busy or not snapshot.seen:
        said = f"{ranks_in_words(one.rank for one in busy)} compute" if busy else "no rank was seen"
        verdict = Verdict.NOTHING if busy else Verdict.UNDETERMINED
        return Judgement(Diagnosis(verdict, said), certain=not busy or bool(snapshot.stalled))
    if not snapshot.long_still:
        return Judgement(Diagnosis(Verdict.NOTHING, "the ranks pause outside of collectives"), certain=False)
    if snapshot.seen and not any(one.state for one in snapshot.seen):
        return _outlived(snapshot)
    held = [one for one in snapshot.seen if one.state and has_ended(one)]
    if held and all(one in held or not one.state for one in snapshot.seen):
        return _blame(snapshot, held, ())
    living = [one for one in snapshot.seen if one.state] or snapshot.seen
    return below_ranks(living) or _waiting_apart(living, snapshot)


def _outlived(snapshot: JobSnapshot) -> Diagnosis:
    """All ranks have ended, and what started them has not: a launcher takes its time on a crowded node."""
    said = f"all {len(snapshot.seen)} ranks have ended, and what started them has not"
    nodes = ", ".join(sorted({one.node for one in snapshot.seen})[:MOST])
    if snapshot.stalled < START_PATIENCE:
        return Diagnosis(Verdict.NOTHING, said)
    remedy = f"what does the launcher wait for? clusterrun exec --node NODE -- ps -ef, on {nodes}"
    return Diagnosis(Verdict.WAITING, said, remedy=remedy)


def _busy_without_progress(snapshot: JobSnapshot, busy: Sequence[RankSeen]) -> Diagnosis:
    """A rank that waits for its GPU spins, and one that computes does not tell: neither is blamed."""
    who = ranks_in_words(one.rank for one in busy)
    said = f"{who} keep{'s' if len(busy) == 1 else ''} a processor busy, but no rank has begun a collective "
    said += f"or printed for {snapshot.stalled:.0f} s: it computes, or waits for its GPU"
    records = "torch keeps no flight records here: it is too old, or TORCH_NCCL_TRACE_BUFFER_SIZE is 0"
    remedy = "clusterrun top shows whether the GPUs work; ranks that print now and then are not taken to hang"
    return Diagnosis(Verdict.UNDETERMINED, said, (), (), (*_reasons(busy), records), remedy)


def _waiting_apart(living: Sequence[RankSeen], snapshot: JobSnapshot) -> Diagnosis:
    """Those who live wait, each for something outside of torch."""
    lines = {place(one.stack).line for one in living} - {""}
    where = f",{' all' if len(living) > 1 else ''} at {lines.pop()}" if len(lines) == 1 else ""
    gone = [one.rank for one in snapshot.seen if one not in living]
    who = f"all {len(living)} ranks {'that are left ' if gone else ''}wait"
    if len(living) == 1:
        who = f"rank {living[0].rank}{', the only one left,' if gone else ''} waits"
    said = f"{who} outside of collectives{where}{_standing_apart(living)}"
    evidence = _reasons(living, 8)
    evidence += [f"{ranks_in_words(gone)} {'has' if len(gone) == 1 else 'have'} ended"] if gone else []
    return Diagnosis(Verdict.WAITING, said, (), (), tuple(evidence), reason(living[0]).remedy)


def _standing_apart(living: Sequence[RankSeen]) -> str:
    """The one that stands elsewhere than all others: who waits for whom, nothing tells."""
    lines: dict[str, list[int]] = {}
    for one in living:
        lines.setdefault(place(one.stack).line, []).append(one.rank)
    (line, ranks), *rest = sorted(lines.items(), key=lambda item: len(item[1])) or [("", [])]
    if not line or len(ranks) != 1 or len(rest) != 1 or not rest[0][0] or len(rest[0][1]) < 2:
        return ""
    others = f"{ranks_in_words(rest[0][1])} at {rest[0][0]}"
    return f": {others}, rank {ranks[0]} alone at {line}. Either they wait for it, or it waits for them"


def _reasons(ranks: Sequence[RankSeen], most: int = MOST) -> list[str]:
    return [f"rank {one.rank} on {one.node}: {reason(one).why}" for one in ranks[:most]]


def _blame(
    snapshot: JobSnapshot,
    ranks: Sequence[RankSeen],
    waits: Sequence[Waiting],
    late_too: Sequence[RankSeen] = (),
) -> Diagnosis:
    """``late_too``: others that have not come, of whom it is not certain that they will not."""
    culprits = snapshot.culprits({one.rank: reason(one).why for one in ranks})
    who = ranks_in_words(one.rank for one in ranks)
    first = ranks[0]
    on = f" on {first.node}" if len({one.node for one in ranks}) == 1 else ""
    never = _never(first.rank, waits) or f" hold{'s' if len(ranks) == 1 else ''} the others up"
    said = f"{who}{on}{never}: {_why(culprits)}"
    late = [f"rank {one.rank} on {one.node} has not come either: {reason(one).why}" for one in late_too]
    remedies = dict.fromkeys(reason(one).remedy for one in ranks)
    remedy = "; ".join([*list(remedies)[:MOST], *_for_some_only(snapshot, ranks, waits)])
    evidence = (*snapshot.waited(waits), *late[:MOST])
    return Diagnosis(Verdict.NEVER_ARRIVED, said, culprits, (), evidence, remedy)


def _never(rank: int, waits: Sequence[Waiting]) -> str:
    """What others wait in for ``rank``: a collective rather than a send."""
    waited = [one for one in waits if rank in one.missing]
    if not waited:
        return ""
    one = max(waited, key=lambda one: one.record.sequence > 0)
    return f" never came to {called(one.record)}" if one.record.sequence else f" never called {half(one)}"


def _why(culprits: Sequence[Culprit]) -> str:
    first, *others = culprits
    if not others:
        return first.why
    if {one.why for one in others} == {first.why}:
        return f"{_said_of(first)}, the others too"
    more = f"; {len(culprits) - MOST} more" if len(culprits) > MOST else ""
    return "; ".join(map(_said_of, culprits[:MOST])) + more


def _said_of(culprit: Culprit) -> str:
    it, _, does = culprit.why.partition(" ")
    return f"rank {culprit.rank}{f' {does}' if it == 'it' else f': {culprit.why}'}"


def _for_some_only(snapshot: JobSnapshot, ranks: Sequence[RankSeen], waits: Sequence[Waiting]) -> list[str]:
    """Where few have come, and the many that have not are in one line: perhaps they are not meant to come."""
    lines = {place(one.stack).line for one in ranks}
    held = any(one.works or one.state in STOPPED for one in ranks)
    if not waits or len(waits) > len(ranks) or len(lines) > 1 or "" in lines or held:
        return []
    inside = [one.rank for one in waits]
    where = f"{waits[0].record.operation}{snapshot.line(*inside)}"
    return [f"or is {where} called by {ranks_in_words(inside)} only, where every rank must call it?"]
