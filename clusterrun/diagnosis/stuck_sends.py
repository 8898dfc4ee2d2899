"""Ranks that began several sends and receives together: whose list does not fit those of the others; pure."""

from __future__ import annotations

from clusterrun.diagnosis.flight_records import sends
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.diagnosis.evidence import PostedOp, RankSeen
    from clusterrun.diagnosis.job_snapshot import JobSnapshot

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
        said += f"the list of one of {ranks_in_words(tuple(who))} is wrong"
        return Diagnosis(Verdict.UNDETERMINED, said, (), (), evidence, remedy)
    others = ranks_in_words(tuple(rank for rank in who if rank != odd.rank))
    why = f"it posts {_listed(odd)}{snapshot.line((odd.rank,))}, which does not fit what {others} posted"
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


def _to(post: PostedOp) -> str:
    return f"{'to' if post.call == 'send' else 'from'} rank {post.peer}"


def _listed(one: RankSeen) -> str:
    tagged = [f"{post.call} {_to(post)}" + (f" (tag {post.tag})" if post.tag else "") for post in one.posts]
    return ", ".join(tagged[:_MOST]) + (" and more" if len(tagged) > _MOST else "")
