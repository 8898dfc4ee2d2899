"""Sends and receives that do not fit: lists begun together, and ranks that wait in a circle; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.diagnosis.evidence import PostedOp, RankSeen
from clusterrun.diagnosis.flight_records import Waiting, sends
from clusterrun.diagnosis.job_snapshot import JobSnapshot
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words

_FITS = {"send": "recv", "recv": "send"}
_MOST = 4


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
    evidence = tuple(f"rank {rank} posts {_listed(lists[rank])}" for rank in who[:_MOST])
    one, _, post = alone[0]
    remedy = "let the other half of each isend and irecv be posted by its peer, with the same tag"
    if odd is None:
        said = f"rank {one.rank} waits for a {post.call} {_to(post)}, which has posted no other half of it: "
        said += f"the list of one of {ranks_in_words(who)} is wrong"
        return Diagnosis(Verdict.UNDETERMINED, said, (), (), evidence, remedy)
    others = ranks_in_words(rank for rank in who if rank != odd.rank)
    why = f"it posts {_listed(odd)}{snapshot.line(odd.rank)}, which does not fit what {others} posted"
    said = f"rank {odd.rank} on {odd.node} posts other sends and receives than the others wait for: {why}"
    return Diagnosis(Verdict.MISMATCH, said, (Culprit(odd.rank, odd.node, why),), (), evidence, remedy)


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
    return ", ".join(tagged[:_MOST]) + (" and more" if len(tagged) > _MOST else "")


def in_a_circle(snapshot: JobSnapshot, waits: Sequence[Waiting]) -> Diagnosis | None:
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
    steps = [f"rank {one.rank} {_does(one)} {_to(one)}{snapshot.line(one.rank)}" for one in circle]
    shown = ", ".join(steps[:_MOST]) + (" and so on" if len(steps) > _MOST else "")
    ranks = ranks_in_words(one.rank for one in circle)
    if len(calls) > 1:
        said = (
            f"{ranks} wait for each other in sends and receives: {shown}; which of them is wrong is not told"
        )
        remedy = "let each send name as dst who receives it, and each recv as src who sends it"
        return Diagnosis(Verdict.MISMATCH, said, (), (), snapshot.waited(waits), remedy)
    first, second = ("send", "receive") if calls == {"send"} else ("receive", "send")
    said = f"{ranks} wait for each other: each {first}s before it {second}s: {shown}"
    remedy = f"let one of each two {second} first, or begin both with batch_isend_irecv"
    all_of_them = len(circle) == snapshot.size
    culprits = tuple(
        Culprit(one.rank, one.node, f"it {_does(one)} {_to(one)}{snapshot.line(one.rank)}")
        for one in ([] if all_of_them else sorted(circle, key=lambda one: one.rank))
    )
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), snapshot.waited(waits), remedy)


def _does(one: RankSeen) -> str:
    return "sends" if one.call == "send" else "receives"
