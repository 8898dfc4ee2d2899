"""A rank waits for operations that it posted to a rank that has posted no other half of them.

The lists are read from variables, which may hold an older list. Ranks in another turn are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable, sends
from clusterrun.diagnosis.evidence import PostedOp, RankSnapshot
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import MOST_LINES, at_place, blame, to_peer

CERTAINTY = 46
OTHER_HALF = {"send": "recv", "recv": "send"}


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_long_still:
        return []
    posting = {
        rank.rank: rank
        for rank in table.ranks
        if rank.call.name == "wait" and rank.call.posts
        if table.by_stacks or len(rank.call.posts) <= sends(rank)
    }
    unmatched = [pair for rank in posting.values() for pair in _unmatched(rank, posting)]
    if not unmatched:
        return []
    counts = Counter(rank for pair in unmatched for rank in pair[:2])
    # The only rank that posts another list than all others, seen from itself, if theirs fit each other.
    size = table.size
    patterns = {}
    for rank in posting.values():
        posts = [(post.call, (post.peer - rank.rank) % size, post.tag) for post in rank.call.posts]
        patterns[rank.rank] = tuple(sorted(posts))
    vote = RankVote(patterns)
    odd = -1
    if vote.lone() >= 0:
        usual_posts = vote.sides[0][0]
        halves = sorted((OTHER_HALF[call], -distance % size, tag) for call, distance, tag in usual_posts)
        odd = vote.lone() if tuple(halves) == usual_posts else -1
    if odd < 0 or counts[odd] < len(unmatched):
        most = max(counts.values())
        often = [rank for rank, count in counts.items() if count == most]
        odd = often[0] if len(often) == 1 else -1
    explanation = partial(explain, unmatched=unmatched, ranks=sorted(counts))
    return [Hypothesis(explanation, CERTAINTY, (odd,) if odd >= 0 else ())]


def _unmatched(rank: RankSnapshot, posting: dict[int, RankSnapshot]) -> list[tuple[int, int, PostedOp]]:
    """Find posts of ``rank`` to a rank in the same turn that posted less of the other half."""
    unmatched = []
    for post in dict.fromkeys(rank.call.posts):
        peer = posting.get(post.peer)
        if not peer or sends(rank) - len(rank.call.posts) != sends(peer) - len(peer.call.posts):
            continue
        if rank.location.line != peer.location.line and not rank.answered:
            continue
        other_half = PostedOp(OTHER_HALF[post.call], rank.rank, post.tag)
        if peer.call.posts.count(other_half) < rank.call.posts.count(post):
            unmatched.append((rank.rank, peer.rank, post))
    return unmatched


def _listed(rank: RankSnapshot) -> str:
    posts = [
        f"{post.call} {to_peer(post, post.call)}" + (f" (tag {post.tag})" if post.tag else "")
        for post in rank.call.posts
    ]
    return ", ".join(posts[:MOST_LINES]) + (" and more" if len(posts) > MOST_LINES else "")


def explain(
    table: CallTable, blamed: Ranks, unmatched: Sequence[tuple[int, int, PostedOp]], ranks: Sequence[int]
) -> Diagnosis:
    evidence = [f"rank {rank} posts {_listed(table.of(rank))}" for rank in ranks[:MOST_LINES]]
    remedy = "let the other half of each isend and irecv be posted by its peer, with the same tag"
    if not blamed:
        rank, _, post = unmatched[0]
        sentence = f"rank {rank} waits for a {post.call} {to_peer(post, post.call)}, "
        sentence += (
            f"which has posted no other half of it: the list of one of {ranks_in_words(ranks)} is wrong"
        )
        return blame(table, Verdict.UNDETERMINED, sentence, {}, remedy, evidence)
    (odd,) = blamed
    others = ranks_in_words(rank for rank in ranks if rank != odd)
    why = f"it posts {_listed(table.of(odd))}{at_place(table, odd)}, which does not fit what {others} posted"
    sentence = (
        f"rank {odd} on {table.of(odd).node} posts other sends and receives than the others wait for: {why}"
    )
    return blame(table, Verdict.MISMATCH, sentence, {odd: why}, remedy, evidence)
