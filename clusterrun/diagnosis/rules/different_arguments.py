"""Ranks give the same call other arguments: another root, another tag, splits that do not agree.

Arguments are read from the stacks of ranks in the call, and of ranks that failed in it. A rank that has left
the call, or that aborted, shows none: it counts only for what its variables say now, which may have changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.known_errors import SIZES
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import line_of
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote, one_only
from clusterrun.diagnosis.wording import MOST_LINES, at_place, blame, verb_s

ALL_TO_ALL = "all_to_all_single"
OBJECT_LIST = "broadcast_object_list"
# Above different collectives and sizes: the arguments are exact.
CERTAINTY = 83


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end:
        return _splits(table) or _lists(table, table.end)
    return _splits(table) or _roots(table) or _tags(table)


def _splits(table: CallTable) -> list[Hypothesis]:
    """Each rank must send what its receiver expects. Either rank of a single pair may be wrong."""
    splits = {rank.rank: rank.call.counts for rank in table.ranks if rank.call.function == ALL_TO_ALL}
    splits = {rank: counts for rank, counts in splits.items() if len(counts) == 2 * table.size}
    pairs = [
        (sender, receiver)
        for sender, sent in splits.items()
        for receiver, received in splits.items()
        if sent[receiver] != received[table.size + sender]
    ]
    if not pairs:
        return []
    counts = Counter(rank for pair in pairs for rank in set(pair))
    odd = one_only(rank for rank, count in counts.items() if count == len(pairs))
    lone = RankVote(splits).lone()
    if odd < 0 and lone in counts:
        odd = lone
    pair = next((pair for pair in pairs if odd in pair), pairs[0])
    explain = partial(explain_different_splits, pair=pair, splits=splits)
    return [Hypothesis(explain, CERTAINTY, (odd,) if odd >= 0 else ())]


def _lists(table: CallTable, run: Remains) -> list[Hypothesis]:
    """Lists of ``broadcast_object_list`` have different lengths. An aborted rank expected 8 bytes each."""
    calls = [rank for rank in table.ranks if rank.call.function == OBJECT_LIST and rank.call.counts]
    lengths = {rank.rank: rank.call.counts[0] for rank in calls}
    for error in run.errors if calls else ():
        sizes = SIZES.search(error.text)
        if sizes:
            lengths.setdefault(error.rank, int(sizes[2]) // 8)
    vote = RankVote(lengths)
    if vote.is_unanimous:
        return []
    explain = partial(explain_different_lists, run=run, sides=vote.sides, root=calls[0].call.root)
    return [Hypothesis(explain, CERTAINTY, vote.odd)]


def _roots(table: CallTable) -> list[Hypothesis]:
    """Ranks in one collective name different roots."""
    places: dict[tuple[str, int], dict[int, list[int]]] = {}
    for wait in table.waits:
        # A stack does not show the group, and groups have roots of their own.
        if wait.root >= 0 and (wait.is_of_all or not table.by_stacks):
            roots = places.setdefault((wait.group, wait.sequence), {})
            roots.setdefault(wait.root, []).append(wait.rank)
    differing = [(place, roots) for place, roots in places.items() if len(roots) > 1]
    if not differing:
        return []
    (group, _), roots = min(differing)
    supporters = {root: _supporters(table, group, root, ranks) for root, ranks in roots.items()}
    sides = sorted(
        roots.items(), key=lambda side: (-len(supporters[side[0]]), side[0] not in side[1], side[0])
    )
    members = table.members(table.of(sides[0][1][0]), group)
    undecided = len(set(members).difference(*supporters.values()))
    odd = sides[1:] if _are_wrong(sides, supporters, undecided) else []
    culprits = tuple(rank for _, ranks in odd for rank in ranks)
    explain = partial(explain_different_roots, sides=sides, supporters_of=supporters)
    return [Hypothesis(explain, CERTAINTY, culprits)]


def _are_wrong(sides: list[tuple[int, list[int]]], supporters: dict[int, set[int]], undecided: int) -> bool:
    """Return whether every root but the first is wrong.

    A rank that names another root cannot be the root. Otherwise the first needs more supporters
    than the others could get together from the ``undecided`` ranks.
    """

    def is_denied(root: int) -> bool:
        return any(root in ranks for other, ranks in sides if other != root)

    first, *others = [root for root, _ in sides]
    if len(supporters[first]) > sum(len(supporters[root]) for root in others) + undecided:
        return True
    return not is_denied(first) and all(map(is_denied, others))


def _supporters(table: CallTable, group: str, root: int, ranks: list[int]) -> set[int]:
    """Return the ranks in calls of this line that name ``root``, and later ranks whose variables do."""
    calls = {(table.of(rank).call.rooted, table.location(rank).line) for rank in ranks}
    supporters = set()
    for wait in table.waits:
        rank = table.of(wait.rank)
        if wait.group == group and rank.call.root == root and (rank.call.rooted, rank.location.line) in calls:
            supporters.add(rank.rank)
    lines = {line_of(table.location(rank).frame) for rank in ranks}
    for rank in table.ranks:
        if rank.call.root >= 0 or rank.rank not in table.members(table.of(ranks[0]), group):
            continue
        pairs = (entry.rpartition(" ") for entry in rank.call.named)
        if {its_root for line, _, its_root in pairs if line in lines} == {str(root)}:
            supporters.add(rank.rank)
    return supporters


def _tags(table: CallTable) -> list[Hypothesis]:
    """A rank sends to a rank that receives from it, with another tag. Either end may be wrong."""
    for sender in table.ranks:
        receiver = table.by_rank.get(sender.call.peer)
        if sender.call.name != "send" or not receiver or receiver.call.name != "recv":
            continue
        tags = {sender.call.tag, receiver.call.tag}
        if receiver.call.peer == sender.rank and len(tags) > 1 and min(tags) >= 0:
            return [Hypothesis(explain_different_tags, CERTAINTY, (sender.rank, receiver.rank))]
    return []


def explain_different_roots(
    table: CallTable,
    blamed: Ranks,
    sides: Sequence[tuple[int, list[int]]],
    supporters_of: Mapping[int, set[int]],
) -> Diagnosis:
    call = table.wait_by_rank[sides[0][1][0]]
    lines = []
    for root, ranks in sides:
        supporters = supporters_of[root]
        place = at_place(table, *ranks)
        lines.append(f"{ranks_in_words(supporters)} name{verb_s(supporters)} rank {root}{place}")
    sentence = f"ranks name different roots of {call.title}: {'; '.join(lines)}"
    sentence += "" if blamed else "; nothing shows which is right"
    whys = {}
    for rank in blamed:
        root = table.wait_by_rank[rank].root
        whys[rank] = f"it names rank {root} as the root of {call.operation}{at_place(table, rank)}"
    remedy = f"let every rank give {call.operation} the same root (src, dst)"
    remedy += "" if blamed else "; a loop must take its items in the same order on every rank: a set has none"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def explain_different_tags(table: CallTable, blamed: Ranks) -> Diagnosis:
    sender, receiver = map(table.of, blamed)
    sent, expected = sender.call.tag, receiver.call.tag
    sentence = f"rank {sender.rank} sends with tag {sent} what rank {receiver.rank} wants with tag {expected}"
    sends_it = f"it sends to rank {receiver.rank} with tag {sent}{at_place(table, sender.rank)}"
    receives = f"it receives from rank {sender.rank} with tag {expected}{at_place(table, receiver.rank)}"
    remedy = "let both ends of a send and its recv name the same tag"
    return blame(table, Verdict.MISMATCH, sentence, {sender.rank: sends_it, receiver.rank: receives}, remedy)


def explain_different_splits(
    table: CallTable, blamed: Ranks, pair: tuple[int, int], splits: Mapping[int, Sequence[int]]
) -> Diagnosis:
    sender, receiver = pair
    sent, expected = splits[sender][receiver], splits[receiver][table.size + sender]
    sentence = (
        f"ranks give all_to_all_single splits that do not agree: rank {sender} sends {sent} rows to rank "
    )
    sentence += f"{receiver}, which expects {expected}"
    why = "its input or output splits do not fit those of the others"
    whys = {rank: f"{why}{at_place(table, rank)}" for rank in blamed}
    lines = [
        f"rank {rank} sends {list(rows[: table.size])} and expects {list(rows[table.size :])}"
        for rank, rows in list(splits.items())[: 2 * MOST_LINES]
    ]
    remedy = "input_split_sizes[j] of rank i must be output_split_sizes[i] of rank j"
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, lines)


def explain_different_lists(
    table: CallTable, blamed: Ranks, run: Remains, sides: Sequence[tuple[int, Ranks]], root: int
) -> Diagnosis:
    lines = []
    for length, ranks in sides:
        passes = "passes" if len(ranks) == 1 else "pass"
        lines.append(f"{ranks_in_words(ranks)} {passes} {length} objects")
    sentence = f"ranks give broadcast_object_list lists of different length: {', '.join(lines)}"
    sentence += f"; its root is rank {root}" if root >= 0 else ""
    whys = {
        rank: f"its list has {length} objects, that of others {sides[0][0]}"
        for length, ranks in sides[1:]
        for rank in ranks
        if rank in blamed
    }
    remedy = "every rank passes a list of the root's length, for example [None] * n"
    evidence = tuple(run.quoted(error) for error in run.errors if SIZES.search(error.text))
    return Diagnosis(Verdict.MISMATCH, sentence, run.culprits(whys), (), evidence[:1], remedy)
