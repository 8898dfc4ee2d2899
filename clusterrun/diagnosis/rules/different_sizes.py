"""gloo aborted a rank that was sent more bytes than it expected: which rank called something else.

The rank that aborts leaves no record and may be right: it is blamed only if all records that are left agree,
and are more. Several ranks that abort and expected the same size outvote fewer ranks that called something
larger and went on. Of two ranks, and of calls in which each pair has a size of its own, either may be wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from clusterrun.diagnosis.calls import EQUAL_SIZES, Call, CallTable
from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.rules.different_collective import different_calls
from clusterrun.diagnosis.verdict import Verdict, unfolded
from clusterrun.diagnosis.vote import RankVote
from clusterrun.model.frozen import Any
from clusterrun.model.states import State

CERTAINTY = 80
# Bytes sent, and bytes expected.
SIZES = re.compile(r"op\.nbytes\. (\d+) vs (\d+)")
# Calls that no rank leaves before all others have begun them.
_OF_ALL = {
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "barrier"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
}
# Calls of one size by all ranks before that size counts as usual.
USUALLY = 2
# Bytes: a part of a tensor is a whole number of its elements.
_ROUNDED = 8


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not root:
        return []
    sides = different_calls(table)
    is_mismatch = bool(root.row) and root.row is not None and root.row.verdict is Verdict.MISMATCH
    if not is_mismatch and not (sides and _failed_in_call(table, root)):
        return []
    aborted = {error.rank for error in run.errors if SIZES.search(error.text)}
    facts = {"root": root, "aborted": tuple(sorted(aborted))}
    if not sides:
        return _records_agree(table, facts) if aborted else []
    smallest = min(sides, key=lambda side: size_in_bytes(side[0]))
    recorded = {rank for call, ranks in sides if call is not smallest[0] for rank in ranks}
    smaller = {*smallest[1], *aborted} - recorded
    whole = [(call, tuple(sorted(smaller)) if call is smallest[0] else ranks) for call, ranks in sides]
    culprits = RankVote({rank: call.comparable for call, ranks in whole for rank in ranks}).suspects
    return [Hypothesis("different calls at the end", CERTAINTY, culprits, {**facts, "sides": whole})]


def _failed_in_call(table: CallTable, root: Error) -> bool:
    """Whether the first error was raised within a call of torch.distributed."""
    rank = table.by_rank.get(root.rank)
    return rank is not None and rank.call.function != ""


def _records_agree(table: CallTable, facts: dict[str, Any]) -> list[Hypothesis]:
    """All records that are left agree: what was sent, and by whom?"""
    run, aborted = table.end, facts["aborted"]
    if not run:
        return []
    mates = {rank.rank: calls for rank in table.ranks if (calls := _calls_with(table, rank, aborted))}
    pairs = _pairs(table)
    sent = max(sent for sent, _ in pairs)
    calls = [call for of_rank in mates.values() for call in of_rank]
    # The others may have gone on: what they called is the newest call that is large enough.
    called = max(
        (call for call in calls if size_in_bytes(call) >= sent), key=lambda call: call.at, default=None
    )
    facts = {**facts, "called": called, "pairs": pairs}
    is_whole = len({*mates, *aborted}) == len(run.nodes) and not run.per_node
    if not mates or (is_whole and not called):
        facts["called"] = None  # A send: no recorded call is so large.
        return [Hypothesis("sent too much", CERTAINTY, facts=facts)]
    if called and called.operation not in EQUAL_SIZES:
        return [_sizes_apart(table, called, facts)]
    elsewhere = _stood_elsewhere(table, aborted)
    if elsewhere:
        return [elsewhere]
    if called:  # Of several groups that they share, the one in which it was sent.
        mates = {
            rank: [call for call in of_rank if call.group == called.group] for rank, of_rank in mates.items()
        }
        mates = {rank: of_rank for rank, of_rank in mates.items() if of_rank}
    newest = {rank: max(of_rank, key=lambda call: call.at) for rank, of_rank in mates.items()}
    expecting = {rank: call for rank, call in newest.items() if _is_expected(table, rank, call, pairs)}
    expected = {wanted for _, wanted in pairs}
    equal = [call for call in calls if not called and size_in_bytes(call) in expected]
    alike = next(iter(expecting.values()), equal[0] if equal else None)
    if alike:
        agreeing = (*aborted, *(expecting or mates))
        facts = {**facts, "agreeing": agreeing, "alike": alike}
        return [Hypothesis("sent too much", CERTAINTY, facts=facts)]
    together = tuple(sorted(mates))
    if len(together) <= len(aborted):
        is_outvoted = is_whole and called and len(expected) == 1 and len(together) < len(aborted)
        culprits = together if is_outvoted else ()
        return [Hypothesis("sent too much", CERTAINTY, culprits, {**facts, "together": together})]
    return [Hypothesis("called something smaller", CERTAINTY, aborted, {**facts, "together": together})]


def _pairs(table: CallTable) -> list[tuple[int, int]]:
    """The bytes that each rank which aborted was sent, and the bytes that it expected."""
    matches = [SIZES.search(error.text) for error in (table.end.errors if table.end else ())]
    return [(int(match[1]), int(match[2])) for match in matches if match]


def _calls_with(table: CallTable, rank: RankSnapshot, others: Sequence[int]) -> list[Call]:
    """The calls of ``rank`` in groups that it shares with all ``others``."""
    spans = {group.name: unfolded(group.ranks) for group in rank.groups if group.ranks}
    return [call for call in table.history[rank.rank] if set(others) <= set(spans.get(call.group, others))]


def _is_expected(table: CallTable, rank: int, call: Call, pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether the ranks that aborted expected this, whole or in the parts of ranks, and did not get it."""
    size = next((group.size for group in table.of(rank).groups if group.name == call.group), 0) or table.size
    whole = size_in_bytes(call)
    parts = [-(-whole // share) for share in (1, 2, size, 2 * size)] if whole else []

    def fits(values: Sequence[int]) -> bool:
        return any(0 <= value - part < _ROUNDED for value in values for part in parts)

    return fits([wanted for _, wanted in pairs]) and not fits([sent for sent, _ in pairs])


def _stood_elsewhere(table: CallTable, aborted: Sequence[int]) -> Hypothesis | None:
    """The one rank in another line than all others, which were in a call that no rank leaves alone."""
    run = table.end
    if not run:
        return None
    frames = {error.rank: error.frame for error in run.errors if error.frame}
    stood = {rank.rank: rank.location for rank in table.ranks if rank.stacks.main}
    frames.update((rank, location.frame) for rank, location in stood.items())
    vote = RankVote({rank: frames.get(rank, "") for rank in range(len(run.nodes))})
    odd = vote.lone(3)
    if odd < 0 or any(not frame for frame, _ in vote.sides) or odd in aborted:
        return None
    here, others = vote.sides[0]
    calls = {stood[rank].operation for rank in others if rank in stood}
    if not calls or not calls <= _OF_ALL:
        return None
    facts = {"root": first_error(table), "there": vote.sides[1][0], "here": here, "calls": calls}
    return Hypothesis("stood elsewhere", CERTAINTY, (odd,), facts)


def _sizes_apart(table: CallTable, called: Call, facts: dict[str, Any]) -> Hypothesis:
    """In a call where each pair of ranks has a size of its own: the only rank that changed its size."""
    turns: dict[int, dict[int, Call]] = {}
    for call in table.calls:
        if (call.group, call.operation) == (called.group, called.operation):
            turns.setdefault(call.sequence, {})[call.rank] = call
    usual: set[tuple[str, str]] = set()
    for number, (_, turn) in enumerate(sorted(turns.items())):
        sizes = {rank: (call.sizes, call.types) for rank, call in turn.items()}
        odd = [rank for rank, size in sizes.items() if size not in usual]
        if number >= USUALLY and len(usual) == 1 and len(odd) == 1 and len(turn) > 2:
            facts = {**facts, "call": turn[odd[0]], "usual": " ".join(usual.pop())}
            return Hypothesis("changed its size", CERTAINTY, (odd[0],), facts)
        usual |= set(sizes.values())
    return Hypothesis("sent too much", CERTAINTY, facts=facts)


def size_in_bytes(call: Call) -> int:
    """About how large the input of a call is: only the order counts."""
    width = {"Double": 8, "Long": 8, "ComplexFloat": 8, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1}
    shapes = re.findall(r"\[([\d, ]*)\]", call.sizes)
    total = sum(math.prod(map(int, shape.replace(",", " ").split())) for shape in shapes)
    return total * width.get(call.types.partition(",")[0], 4)
