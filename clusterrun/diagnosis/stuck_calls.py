"""All ranks are in calls that do not end: a link, or calls that do not belong together; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.evidence import PostedOp, RankSeen
from clusterrun.diagnosis.flight_records import HALF, LOCK, Waiting, members, sends
from clusterrun.diagnosis.job_snapshot import JobSnapshot, called
from clusterrun.diagnosis.left_out_calls import alone_departed, alone_departs, left_out
from clusterrun.diagnosis.stack_location import line_of, place
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words

MOST_COUNTS = 16
_FITS = {"send": "recv", "recv": "send"}
_MOST_STEPS = 4
_QUEUED = "to begin it is to queue it: a GPU that hangs in a kernel before it looks the same from outside"


def unended(snapshot: JobSnapshot, waits: Sequence[Waiting], stuck: Sequence[Waiting]) -> Diagnosis:
    """``stuck`` wait in a collective that everybody has begun: what ends owe each other tells the link."""
    if all(one.record.operation == HALF for one in stuck):
        return _unanswered(snapshot, waits, stuck)
    operation = min(stuck, key=lambda one: one.record.at).record.operation
    said = f"all ranks have begun {operation}, and it does not end"
    evidence = [*snapshot.waited(waits)]
    remedy = "clusterrun check finds the link; until it is mended, leave one of its ends out (--exclude)"
    if not snapshot.owed and all(_over_tcp(snapshot.of(one.rank), one) for one in stuck):
        said += ", though no connection owes an answer"
        remedy = f"does every rank give {operation} the same root (src, dst) and equal shapes? else: {remedy}"
        return Diagnosis(Verdict.UNDETERMINED, said, (), (), tuple(evidence), remedy)
    if not snapshot.owed:
        if any("nccl" in group.backend for one in stuck for group in snapshot.of(one.rank).groups):
            evidence.append(_QUEUED)
            remedy += "; nvidia-smi and dmesg | grep -i xid on each node show a GPU that is stuck"
        evidence.append("no TCP connection owes an answer: where ranks use RDMA, its counters may tell more")
        return Diagnosis(Verdict.LINK, said, (), (), tuple(evidence), remedy)
    links = sorted({tuple(sorted((one.node, snapshot.node_at(debt.peer)))) for one, debt in snapshot.owed})
    culprits = tuple(
        Culprit(-1, one.node, f"what it sends to {snapshot.node_at(debt.peer)} is not acknowledged")
        for one, debt in {(one.node, debt.peer): (one, debt) for one, debt in snapshot.owed}.values()
    )
    said += f": the link between {' and between '.join(f'{a} and {b}' for a, b in links[:4])} is broken"
    return Diagnosis(Verdict.LINK, said, culprits, (), tuple(evidence), remedy)


def _unanswered(snapshot: JobSnapshot, waits: Sequence[Waiting], stuck: Sequence[Waiting]) -> Diagnosis:
    """All of ``stuck`` wait for sends or receives, and nothing tells of whom."""
    ranks = [one.rank for one in stuck]
    wait = "waits" if len(ranks) == 1 else "wait"
    said = f"{ranks_in_words(ranks)} {wait} for {HALF} that is not answered{snapshot.line(*ranks)}"
    if odd := alone_departs(snapshot, waits):
        why = f"it is in {odd.record.operation}{snapshot.line(odd.rank)}, and since its last collective has "
        why += "begun another number of sends and receives than ever before, where all others have begun as "
        why += "many as ever"
        said += f": rank {odd.rank} on {snapshot.of(odd.rank).node} is odd: {why}"
        remedy = "let every send have its recv, in the same turn: mind the first and the last rank, and "
        remedy += "branches"
        culprits = snapshot.culprits({odd.rank: why})
        return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)
    remedy = "does the rank that is its peer call the other half, with the same tag and in the same order?"
    counts = ", ".join(f"rank {one.rank} {sends(one)}" for one in snapshot.seen[:MOST_COUNTS] if sends(one))
    evidence = [*snapshot.waited(waits), *([f"begun were sends and receives: {counts}"] if counts else [])]
    if not any(snapshot.of(rank).posts for rank in ranks):
        remedy += " The list given to batch_isend_irecv is shown here where a variable holds it"
    return Diagnosis(Verdict.UNDETERMINED, said, (), (), tuple(evidence), remedy)


def held_locks(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """A rank holds the lock of a file that others wait for, and waits for others as well."""
    at = {one.rank: one for one in waits}
    wanted: dict[int, list[int]] = {}
    for one in waits:
        if one.record.operation == LOCK and at.keys() >= set(one.missing):
            wanted.setdefault(one.missing[0], []).append(one.rank)
    whys = {}
    for rank, others in sorted(wanted.items()):
        file = snapshot.of(others[0]).lock
        why = f"it holds the lock{f' of {file}' if file else ''} that {ranks_in_words(others)} "
        why += f"{'waits' if len(others) == 1 else 'wait'} for{snapshot.line(*others)}, and waits in "
        whys[rank] = f"{why}{at[rank].record.operation}{snapshot.line(rank)}"
    if not whys:
        return None
    culprits = snapshot.culprits(whys)
    first = culprits[0]
    said = f"rank {first.rank} on {first.node} waits while it holds the lock of a file: {first.why}"
    remedy = "give the lock back before a call that others must join"
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)


def other_arguments(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """Ranks that call the same with another root or tag."""
    return _other_roots(snapshot, waits) or _other_tags(snapshot, waits)


def _other_roots(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """Ranks that are in one collective and name different roots of it."""
    places: dict[tuple[str, int], dict[int, list[int]]] = {}
    for one in waits:
        seen, record = snapshot.of(one.rank), one.record
        if seen.root >= 0 and record.operation == seen.rooted:
            roots = places.setdefault((record.group, record.sequence), {})
            roots.setdefault(seen.root, []).append(one.rank)
    differing = [(place, roots) for place, roots in places.items() if len(roots) > 1]
    if not differing:
        return None
    (group, _), roots = min(differing)
    agree = {root: _agree(snapshot, waits, root, ranks) for root, ranks in roots.items()}
    sides = sorted(roots.items(), key=lambda side: (-len(agree[side[0]]), side[0] not in side[1], side[0]))
    left = set(members(snapshot.of(sides[0][1][0]), group, snapshot.seen)).difference(*agree.values())
    odd = sides[1:] if _are_wrong(sides, agree, len(left)) else []
    call = next(one.record for one in waits if one.rank == sides[0][1][0])
    operation = call.operation
    lines = [
        f"{ranks_in_words(ranks)} name{'s' if len(ranks) == 1 else ''} rank {root}{snapshot.line(*ranks)}"
        for root, ranks in sides
    ]
    whys = {
        rank: f"it names rank {root} as the root of {operation}{snapshot.line(rank)}"
        for root, ranks in odd
        for rank in ranks
    }
    said = f"ranks name different roots of {called(call)}: {'; '.join(lines)}"
    said += "" if odd else "; nothing tells which is right"
    remedy = f"let every rank give {operation} the same root (src, dst)"
    return Diagnosis(Verdict.MISMATCH, said, snapshot.culprits(whys), (), snapshot.waited(waits), remedy)


def _are_wrong(sides: list[tuple[int, list[int]]], agree: dict[int, set[int]], left: int) -> bool:
    """Whether all roots but the first are wrong: named by fewer, or by none of those who know best.

    The ``left`` that have gone on may have named any, itself above all; a root that is still there and
    names another one is none.
    """
    deny = {root: any(root in ranks for other, ranks in sides if other != root) for root, _ in sides}
    (first, _), *rest = sides
    return all(
        (deny[root] and not deny[first]) or len(agree[first]) > len(agree[root]) + left for root, _ in rest
    )


def _agree(snapshot: JobSnapshot, waits: Sequence[Waiting], root: int, ranks: list[int]) -> set[int]:
    """Who names ``root``, those included who are in a later call of that line, or have gone on from it."""
    groups = {one.record.group for one in waits if one.rank in ranks}
    calls = {(snapshot.of(rank).rooted, place(snapshot.of(rank).stack).line) for rank in ranks}
    known = [snapshot.of(one.rank) for one in waits if one.record.group in groups]
    found = {one.rank for one in known if one.root == root and (one.rooted, place(one.stack).line) in calls}
    lines = {line_of(place(snapshot.of(rank).stack).frame) for rank in ranks}
    member = set(members(snapshot.of(ranks[0]), next(iter(groups)), snapshot.seen))
    gone = [one for one in snapshot.seen if one.rank in member and one.root < 0]
    for one in gone:
        pairs = (named.rpartition(" ") for named in one.named)  # what its variables give to these calls
        if {its for line, _, its in pairs if line in lines} == {str(root)}:
            found.add(one.rank)
    return found


def _other_tags(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """A rank sends to one that receives from it, and they name different tags."""
    ends = {one.rank: one for one in snapshot.seen if one.call in ("send", "recv")}
    for one in ends.values():
        two = ends.get(one.peer)
        if two is None or (one.call, two.call, two.peer) != ("send", "recv", one.rank) or one.tag == two.tag:
            continue
        whys = {
            one.rank: f"it sends to rank {two.rank} with tag {one.tag}{snapshot.line(one.rank)}",
            two.rank: f"it receives from rank {one.rank} with tag {two.tag}{snapshot.line(two.rank)}",
        }
        said = f"rank {one.rank} sends with tag {one.tag} what rank {two.rank} wants with tag {two.tag}"
        remedy = "let both ends of a send and its recv name the same tag"
        return Diagnosis(Verdict.MISMATCH, said, snapshot.culprits(whys), (), snapshot.waited(waits), remedy)
    return None


def _over_tcp(rank: RankSeen, where: Waiting) -> bool:
    """Whether a rank waits where it knows no other way: what is lost there is seen as owed.

    A send or receive stands in no group that is known: there all of them are to be such.
    """
    groups = [group for group in rank.groups if group.name == where.record.group] or rank.groups
    return bool(groups) and all(group.backend == "gloo" for group in groups)


def crossed(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis:
    """Everybody waits for somebody who waits elsewhere: where most are in one place, the others are odd.

    Who waits for a rank that has gone on to a call of a wider group is right to wait: that rank skipped it.
    """
    if found := _in_a_circle(snapshot, waits) or left_out(snapshot, waits):
        return found
    places: dict[tuple[str, int], list[Waiting]] = {}
    for one in waits:
        places.setdefault((one.record.group, one.record.sequence), []).append(one)
    most, *others = sorted(places.values(), key=len, reverse=True)
    apart = others and len(most) > len(others[0])
    odd = {one.rank: _inside(snapshot, one) for together in others for one in together} if apart else {}
    said = "ranks wait for each other in different groups or calls: their collectives are not in one order"
    if departed := alone_departed(snapshot, waits):
        one, how = departed
        odd = {one.rank: f"{how}; {_inside(snapshot, one)}"}
        said = f"rank {one.rank} on {snapshot.of(one.rank).node} left the order of calls: {how}"
    whys = {one.rank: odd[one.rank] for one in waits if one.missing and one.rank in odd}
    remedy = "let every rank call the collectives of all groups in the same order"
    return Diagnosis(Verdict.MISMATCH, said, snapshot.culprits(whys), (), snapshot.waited(waits), remedy)


def _inside(snapshot: JobSnapshot, one: Waiting) -> str:
    line = snapshot.line(one.rank)
    return f"it is in {one.record.operation}{line}, without {ranks_in_words(one.missing)}"


def other_posts(snapshot: JobSnapshot) -> Diagnosis | None:
    """A rank waits for another one that waits too, and has posted no other half of it.

    The one that differs is known where all others post the same to those at the same distance, as in a
    ring, or where it alone fits neither of two others; else either end may be wrong.
    """
    posting = [one for one in snapshot.seen if one.call == "wait" and len(one.posts) <= sends(one)]
    lists = {one.rank: one for one in posting if one.posts}
    alone = [pair for one in lists.values() for pair in _unmatched(one, lists)]
    if not alone:
        return None
    who = sorted({rank for one, two, _ in alone for rank in (one.rank, two.rank)})
    often = [sum(rank in (one.rank, two.rank) for one, two, _ in alone) for rank in who]
    odd = _odd(list(lists.values()), snapshot.size)
    if odd is None or often[who.index(odd.rank)] < len(alone):
        first, second = sorted(often, reverse=True)[:2]
        odd = lists[who[often.index(first)]] if first > second else None
    evidence = tuple(f"rank {rank} posts {_listed(lists[rank])}" for rank in who[:_MOST_STEPS])
    one, _, post = alone[0]
    remedy = "let the other half of each isend and irecv be posted by its peer, with the same tag"
    if odd is None:
        said = f"rank {one.rank} waits for a {post.call} {_to(post)}, which has posted no other half of it: "
        said += f"the list of one of {ranks_in_words(who)} is wrong"
        return Diagnosis(Verdict.UNDETERMINED, said, (), (), evidence, remedy)
    others = ranks_in_words(rank for rank in who if rank != odd.rank)
    why = f"it posts {_listed(odd)}{snapshot.line(odd.rank)}, which does not fit what {others} posted"
    said = f"rank {odd.rank} on {odd.node} posts other sends and receives than the others wait for: {why}"
    return Diagnosis(Verdict.MISMATCH, said, snapshot.culprits({odd.rank: why}), (), evidence, remedy)


def _unmatched(one: RankSeen, lists: dict[int, RankSeen]) -> list[tuple[RankSeen, RankSeen, PostedOp]]:
    """What ``one`` posts to a rank that is in the same turn and posts less of the other half."""
    found = []
    for post in dict.fromkeys(one.posts):
        two = lists.get(post.peer)
        if two is None or sends(one) - len(one.posts) != sends(two) - len(two.posts):
            continue
        halves = [(half.call, half.peer, half.tag) for half in two.posts]
        if halves.count((_FITS[post.call], one.rank, post.tag)) < one.posts.count(post):
            found.append((one, two, post))
    return found


def _odd(posting: list[RankSeen], size: int) -> RankSeen | None:
    """The only one that, as seen from itself, posts other things than all others, who fit each other."""
    patterns: dict[tuple[tuple[str, int, int], ...], list[RankSeen]] = {}
    for one in posting:
        pattern = tuple(sorted((post.call, (post.peer - one.rank) % size, post.tag) for post in one.posts))
        patterns.setdefault(pattern, []).append(one)
    (_, few), *rest = sorted(patterns.items(), key=lambda item: len(item[1]))
    if len(few) > 1 or len(rest) != 1 or len(rest[0][1]) < 2:
        return None
    halves = sorted((_FITS[call], -distance % size, tag) for call, distance, tag in rest[0][0])
    return few[0] if tuple(halves) == rest[0][0] else None


def _to(post: PostedOp | RankSeen) -> str:
    return f"{'to' if post.call == 'send' else 'from'} rank {post.peer}"


def _listed(one: RankSeen) -> str:
    tagged = [f"{post.call} {_to(post)}" + (f" (tag {post.tag})" if post.tag else "") for post in one.posts]
    return ", ".join(tagged[:_MOST_STEPS]) + (" and more" if len(tagged) > _MOST_STEPS else "")


def _in_a_circle(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
    """A cycle of ranks that each wait in a send or recv for the next."""
    ends = {one.rank: one for one in snapshot.seen if one.call in _FITS}
    unmet = {one.rank for one in waits if one.missing}
    for start in sorted(ends):
        circle: list[int] = []
        rank = start
        while rank in ends and rank in unmet and rank not in circle:
            circle.append(rank)
            rank = ends[rank].peer
        if len(circle) > 1 and rank == start:
            return _circle(snapshot, waits, [ends[rank] for rank in circle])
    return None


def _circle(snapshot: JobSnapshot, waits: Sequence[Waiting], circle: list[RankSeen]) -> Diagnosis:
    """Where all send, or all receive, their order is wrong; else one names another peer than is meant."""
    calls = {one.call for one in circle}
    steps = [f"rank {one.rank} {_step(snapshot, one)}" for one in circle]
    shown = ", ".join(steps[:_MOST_STEPS]) + (" and so on" if len(steps) > _MOST_STEPS else "")
    ranks = ranks_in_words(one.rank for one in circle)
    if len(calls) > 1:
        said = f"{ranks} wait for each other in sends and receives: {shown}; which of them is wrong is not "
        said += "told"
        remedy = "let each send name as dst who receives it, and each recv as src who sends it"
        return Diagnosis(Verdict.MISMATCH, said, (), (), snapshot.waited(waits), remedy)
    first, second = ("send", "receive") if calls == {"send"} else ("receive", "send")
    said = f"{ranks} wait for each other: each {first}s before it {second}s: {shown}"
    remedy = f"let one of each two {second} first, or begin both with batch_isend_irecv"
    all_of_them = len(circle) == snapshot.size
    odd = [] if all_of_them else sorted(circle, key=lambda one: one.rank)
    culprits = snapshot.culprits({one.rank: f"it {_step(snapshot, one)}" for one in odd})
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)


def _step(snapshot: JobSnapshot, one: RankSeen) -> str:
    return f"{'sends' if one.call == 'send' else 'receives'} {_to(one)}{snapshot.line(one.rank)}"
