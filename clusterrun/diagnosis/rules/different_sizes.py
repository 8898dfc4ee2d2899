"""gloo aborted a rank that was sent more bytes than it expected: which rank called something else.

The rank that aborts leaves no record and may be right: it is blamed only if all records that are left agree,
and are more. Several ranks that abort and expected the same size outvote fewer ranks that called something
larger and went on. Either side may be wrong if there are two ranks, or if each pair has a size of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import EQUAL_SIZES, Call, CallTable
from clusterrun.diagnosis.first_error import failure_of, first_error
from clusterrun.diagnosis.habits import HABIT
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.known_errors import SIZES
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules.different_collective import different_calls
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import mismatch
from clusterrun.model.states import State

CERTAINTY = 80
# Calls that no rank leaves before all others have begun them.
_OF_ALL = {
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "barrier"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
}
# Calls of one size by all ranks before that size counts as usual.
USUALLY = 2
_BOTH_ENDS = "compare the shapes and types that both ends of that call give"
# Bytes: a part of a tensor is a whole number of its elements.
_ROUNDED = 8


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not root:
        return []
    sides = different_calls(table)
    is_mismatch = root.row is not None and root.row.verdict is Verdict.MISMATCH
    rank = table.by_rank.get(root.rank)
    is_raised_in_call = rank is not None and rank.call.function != ""
    if not is_mismatch and not (sides and is_raised_in_call):
        return []
    aborted = {error.rank for error in run.errors if SIZES.search(error.text)}
    if not sides:
        return _records_agree(table, run, tuple(sorted(aborted))) if aborted else []
    smallest = min(sides, key=lambda side: size_in_bytes(side[0]))
    recorded = {rank for call, ranks in sides if call is not smallest[0] for rank in ranks}
    smaller = {*smallest[1], *aborted} - recorded
    all_sides = [(call, tuple(sorted(smaller)) if call is smallest[0] else ranks) for call, ranks in sides]
    culprits = RankVote({rank: call.comparable for call, ranks in all_sides for rank in ranks}).suspects
    return [Hypothesis(partial(explain_different_calls, sides=all_sides), CERTAINTY, culprits)]


def _records_agree(table: CallTable, run: Remains, aborted: Ranks) -> list[Hypothesis]:
    """All records that are left agree: find what was sent, and the sender."""
    # Calls of each rank in groups that it shares with all aborted ranks.
    calls_by_mate: dict[int, list[Call]] = {}
    for rank in table.ranks:
        spans = {group.name: unfolded(group.ranks) for group in rank.groups if group.ranks}
        calls = [
            call for call in table.history[rank.rank] if set(aborted) <= set(spans.get(call.group, aborted))
        ]
        if calls:
            calls_by_mate[rank.rank] = calls
    # The bytes that each aborted rank was sent, and the bytes that it expected.
    matches = filter(None, (SIZES.search(error.text) for error in run.errors))
    pairs = [(int(match[1]), int(match[2])) for match in matches]
    sent = max(sent for sent, _ in pairs)
    calls = [call for of_rank in calls_by_mate.values() for call in of_rank]
    # The others may have gone on: what they called is the newest call that is large enough.
    called = max(
        (call for call in calls if size_in_bytes(call) >= sent), key=lambda call: call.at, default=None
    )
    is_whole = len({*calls_by_mate, *aborted}) == len(run.nodes) and not run.per_node
    if not calls_by_mate or (is_whole and not called):
        return [Hypothesis(explain_sent_too_much, CERTAINTY)]  # A send: no recorded call is so large.
    if called and called.operation not in EQUAL_SIZES:
        changed = _changed_its_size(table, called)
        return [changed or Hypothesis(partial(explain_sent_too_much, called=called), CERTAINTY)]
    elsewhere = _stood_elsewhere(table, run, aborted) or _in_wrong_group(table, calls_by_mate)
    if elsewhere:
        return [elsewhere]
    if called:  # Of several groups that they share, the one in which it was sent.
        calls_by_mate = {
            rank: [call for call in of_rank if call.group == called.group]
            for rank, of_rank in calls_by_mate.items()
        }
        calls_by_mate = {rank: of_rank for rank, of_rank in calls_by_mate.items() if of_rank}
    newest = {rank: max(of_rank, key=lambda call: call.at) for rank, of_rank in calls_by_mate.items()}
    expecting = {rank: call for rank, call in newest.items() if _is_expected(table, rank, call, pairs)}
    expected = {expected for _, expected in pairs}
    equal = [call for call in calls if not called and size_in_bytes(call) in expected]
    expected_call = next(iter(expecting.values()), equal[0] if equal else None)
    if expected_call:
        agreeing = (*aborted, *(expecting or calls_by_mate))
        explain = partial(explain_unrecorded_sender, agreeing=agreeing, alike=expected_call)
        return [Hypothesis(explain, CERTAINTY)]
    together = tuple(sorted(calls_by_mate))
    if len(together) <= len(aborted):
        is_outvoted = is_whole and called and len(expected) == 1 and len(together) < len(aborted)
        culprits = together if is_outvoted else ()
        larger = partial(explain_larger, called=called, together=together, aborted=aborted)
        return [Hypothesis(larger, CERTAINTY, culprits)]
    smaller = partial(explain_smaller, called=called, together=together, pairs=pairs)
    return [Hypothesis(smaller, CERTAINTY, aborted)]


def _is_expected(table: CallTable, rank: int, call: Call, pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether aborted ranks expected this size, or a rank's part of it, and got another one."""
    size = next((group.size for group in table.of(rank).groups if group.name == call.group), 0) or table.size
    whole_bytes = size_in_bytes(call)
    parts = [-(-whole_bytes // share) for share in (1, 2, size, 2 * size)] if whole_bytes else []

    def fits(values: Sequence[int]) -> bool:
        return any(0 <= value - part < _ROUNDED for value in values for part in parts)

    return fits([expected for _, expected in pairs]) and not fits([sent for sent, _ in pairs])


def _stood_elsewhere(table: CallTable, run: Remains, aborted: Ranks) -> Hypothesis | None:
    """Return the one rank in another line than all others, which were in a call that no rank leaves alone."""
    frames = {error.rank: error.frame for error in run.errors if error.frame}
    stood = {rank.rank: rank.location for rank in table.ranks if rank.stacks.main}
    frames.update((rank, location.frame) for rank, location in stood.items())
    vote = RankVote({rank: frames.get(rank, "") for rank in range(len(run.nodes))})
    odd = vote.lone(3)
    if odd < 0 or any(not frame for frame, _ in vote.sides) or odd in aborted:
        return None
    usual_line, others = vote.sides[0]
    calls = {stood[rank].operation for rank in others if rank in stood}
    if not calls or not calls <= _OF_ALL:
        return None
    odd_line = vote.sides[1][0]
    explain = partial(explain_stood_elsewhere, odd_line=odd_line, usual_line=usual_line, calls=calls)
    return Hypothesis(explain, CERTAINTY, (odd,))


def _in_wrong_group(table: CallTable, mates: Mapping[int, Sequence[Call]]) -> Hypothesis | None:
    """Return the only rank whose last call it had always made in one other group, and never in this one."""
    strays = []
    for rank, shared in mates.items():
        *earlier, last = table.history[rank]
        usual_groups = [call.group for call in earlier if call.shape == last.shape]
        is_known = any(call.group == last.group for call in earlier)
        is_usual_elsewhere = (
            len(usual_groups) >= HABIT and len({*usual_groups}) == 1 and last.group not in usual_groups
        )
        if last in shared and is_known and is_usual_elsewhere:
            strays.append((last, usual_groups[0]))
    if len(strays) != 1:
        return None
    call, usual_group = strays[0]
    explain = partial(explain_wrong_group, call=call, usual_group=usual_group)
    return Hypothesis(explain, CERTAINTY, (call.rank,))


def _changed_its_size(table: CallTable, called: Call) -> Hypothesis | None:
    """In a call where each pair of ranks has a size of its own: the only rank that changed its size."""
    turns: dict[int, dict[int, Call]] = {}
    for call in table.calls:
        if (call.group, call.operation) == (called.group, called.operation):
            turns.setdefault(call.sequence, {})[call.rank] = call
    usual_sizes: set[tuple[str, str]] = set()
    for number, (_, turn) in enumerate(sorted(turns.items())):
        sizes = {rank: (call.sizes, call.types) for rank, call in turn.items()}
        odd = [rank for rank, size in sizes.items() if size not in usual_sizes]
        if number >= USUALLY and len(usual_sizes) == 1 and len(odd) == 1 and len(turn) > 2:
            usual = " ".join(usual_sizes.pop())
            explain = partial(explain_changed_its_size, call=turn[odd[0]], usual=usual)
            return Hypothesis(explain, CERTAINTY, (odd[0],))
        usual_sizes |= set(sizes.values())
    return None


def size_in_bytes(call: Call) -> int:
    """Return the approximate size of a call's input: only the order counts."""
    width = {"Double": 8, "Long": 8, "ComplexFloat": 8, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1}
    shapes = re.findall(r"\[([\d, ]*)\]", call.sizes)
    total = sum(math.prod(map(int, shape.replace(",", " ").split())) for shape in shapes)
    return total * width.get(call.types.partition(",")[0], 4)


def _line(table: CallTable, rank: int, call: Call | None = None) -> str:
    """Return the line of a rank that complained of sizes, or whose last call was ``call``."""
    errors = table.end.errors if table.end else ()
    is_last = call is not None and table.history.get(rank, [])[-1:] == [call]
    frames = []
    for error in errors:
        is_consequence = is_last and error.row is not None and error.row.consequence
        if error.rank == rank and error.frame and (is_consequence or SIZES.search(error.text)):
            frames.append(error.frame)
    snapshot = table.by_rank.get(rank)
    if is_last and snapshot and snapshot.stacks.main:
        frames.append(snapshot.location.frame)
    return f" at {short(frames[-1])}" if frames and frames[-1] else ""


def explain_different_calls(
    table: CallTable, blamed: Ranks, sides: Sequence[tuple[Call, Ranks]]
) -> Diagnosis:
    _, root = failure_of(table)
    lines = [f"{ranks_in_words(ranks)} called {call.arguments}" for call, ranks in sides]
    number = f"collective {sides[0][0].sequence} of its group"
    whys = {
        rank: f"it called {call.arguments}{_line(table, rank, call)}, {number}"
        for call, ranks in sides
        for rank in ranks
        if rank in blamed
    }
    sentence = f"ranks did not call the same collective: {'; '.join(lines)}"
    remedy = ""
    if not root.row or root.row.verdict is not Verdict.MISMATCH:
        remedy = "let all ranks call the same collectives with equal shapes, and lists of equal length"
    return mismatch(table, sentence, whys, remedy, [*lines, f"rank {root.rank}: {root.message}"])


def explain_smaller(
    table: CallTable,
    blamed: Ranks,
    called: Call | None,
    together: Ranks,
    pairs: Sequence[tuple[int, int]],
) -> Diagnosis:
    _, root = failure_of(table)
    called_text = f"{called.operation} of {called.sizes} {called.types}" if called else ""
    others = f"the others' {called_text}" if called_text else "what the others called"
    others += _width(pairs)
    whys = {rank: f"it called something smaller than {others}{_line(table, rank)}" for rank in blamed}
    sentence = f"{ranks_in_words(whys)} did not call the same collective as {ranks_in_words(together)}"
    calls = [f"{ranks_in_words(together)} called {called_text}"] if called_text else []
    return mismatch(table, sentence, whys, "", [*calls, f"rank {root.rank}: {root.message}"])


def _width(pairs: Sequence[tuple[int, int]]) -> str:
    """Return the type that a rank may have expected, if its size is a whole part of the sent one."""
    times = {sent // expected for sent, expected in pairs if expected and sent % expected == 0}
    part = {2: "half", 4: "a quarter of", 8: "an eighth of"}.get(next(iter(times), 0), "")
    if len(set(pairs)) != 1 or not part:
        return ""
    return f" ({part} the bytes: a type of {part} the width, or a smaller shape)"


def explain_sent_too_much(table: CallTable, blamed: Ranks, called: Call | None = None) -> Diagnosis:
    """A rank aborted, and nothing shows whether it, the sender or a third rank is wrong."""
    remedy = _BOTH_ENDS
    where = ""
    if called:  # In this call each pair of ranks has a size of its own.
        where = f" in {called.operation}"
        remedy = "compare what the ranks pass as input and output sizes there: each pair must agree"
    sentence = f"{_sent_too_much(table, where)}: the records do not show whether it or the sender is wrong"
    return mismatch(table, sentence, {}, remedy)


def explain_unrecorded_sender(table: CallTable, blamed: Ranks, agreeing: Ranks, alike: Call) -> Diagnosis:
    """The ``agreeing`` ranks called ``alike``, and another rank sent more than an aborted one expected."""
    run, root = failure_of(table)
    others = [rank for rank in range(len(run.nodes)) if rank not in agreeing]
    subject = ranks_in_words(others) if others else "another rank"
    they = "they" if len(others) > 1 else "it"
    sentence = f"{_sent_too_much(table)}: the records do not show the sender; "
    sentence += f"{subject} left no record of what {they} called"
    evidence = [f"of that size is {alike.arguments}, which is in the records that are left", run.quoted(root)]
    return mismatch(table, sentence, {}, _BOTH_ENDS, evidence)


def explain_larger(
    table: CallTable, blamed: Ranks, called: Call | None, together: Ranks, aborted: Ranks
) -> Diagnosis:
    """The ranks ``together`` called something larger than the ``aborted`` ones expected."""
    did = f"called {called.arguments}" if called else "called something larger"
    sentence = f"{_sent_too_much(table)}; {ranks_in_words(together)} {did}"
    sentence += "" if blamed else ": the records do not show which of them is wrong"
    whys = dict.fromkeys(blamed, f"it {did}, and {ranks_in_words(aborted)} expected less")
    return mismatch(table, sentence, whys, _BOTH_ENDS)


def _sent_too_much(table: CallTable, where: str = "") -> str:
    run, root = failure_of(table)
    return f"{run.who(root.rank, root.inner)} was sent more than it expected{where}{_line(table, root.rank)}"


def explain_changed_its_size(table: CallTable, blamed: Ranks, call: Call, usual: str) -> Diagnosis:
    run, _ = failure_of(table)
    why = f"it called {call.arguments}, collective {call.sequence} "
    why += f"of its group, and the others called it of {usual}, as it had before"
    sentence = f"rank {call.rank} on {run.node(call.rank)} did not bring what the others expected: {why}"
    return mismatch(table, sentence, {call.rank: why})


def explain_wrong_group(table: CallTable, blamed: Ranks, call: Call, usual_group: str) -> Diagnosis:
    run, _ = failure_of(table)
    rank = table.of(call.rank)
    group, usual = (
        f"group {name} ({ranks_in_words(table.members(rank, name))})" for name in (call.group, usual_group)
    )
    line = _line(table, call.rank, call)
    why = f"it called {call.arguments}{line} in {group}, and always before in {usual}"
    sentence = f"rank {call.rank} on {run.node(call.rank)} used the wrong group: {why}"
    remedy = "does each rank pass the same group to that call, also after a branch on the rank or the step?"
    return mismatch(table, sentence, {call.rank: why}, remedy)


def explain_stood_elsewhere(
    table: CallTable, blamed: Ranks, odd_line: str, usual_line: str, calls: set[str]
) -> Diagnosis:
    run, _ = failure_of(table)
    (rank,) = blamed
    operation = next(iter(calls)) if len(calls) == 1 else "collectives"
    why = f"it was at {short(odd_line)} where the others were in {operation} at {short(usual_line)}"
    sentence = f"rank {rank} on {run.node(rank)} did not call what the others called: {why}"
    return mismatch(table, sentence, {rank: why})
