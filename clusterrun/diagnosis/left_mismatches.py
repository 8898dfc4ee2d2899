"""Ranks that did not agree, known by what a run left: other collectives, models, worlds; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from clusterrun.diagnosis.evidence import RankSeen, Record
from clusterrun.diagnosis.flight_records import EQUAL_SIZES, Side, difference
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stack_location import place, short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.model.frozen import replace

_SIZES = re.compile(r"op\.nbytes\. (\d+) vs (\d+)")
_PARAMETERS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
_OF_ALL = {
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "barrier"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
}
"""Calls that no rank leaves before all others have begun them."""
USUALLY = 2
"""Calls of one size by all, until that size is what they usually bring."""
_ROUNDED = 8
"""Bytes: a part of a tensor is a whole number of its elements."""
_SERVES = "The server socket has failed to listen on any local network address"
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")


def unmet(left: Remains, root: Error) -> Diagnosis | None:
    """Ranks waited in ``init_process_group`` for others: who complains has come."""
    if root.rank > 0 and not left.per_node and _SERVES in root.text:
        return _second_server(left, root)
    if root.row is None or root.row.verdict is not Verdict.NEVER_ARRIVED:
        return None
    joined = next((found for one in left.errors if (found := _JOINED.search(one.text))), None)
    silent = sorted({*range(len(left.nodes))} - {one.rank for one in left.errors})
    came, size = (int(joined[1]), int(joined[2])) if joined else (0, 0)
    evidence = (left.quoted(root),)
    if left.per_node or came == size or len(silent) != size - came:
        said = "ranks did not meet in init_process_group" + (f": {came} of {size} came" if joined else "")
        return Diagnosis(Verdict.NEVER_ARRIVED, said, (), (), evidence, root.row.remedy)
    whys = dict.fromkeys(silent, "it printed nothing, while the others waited for it in init_process_group")
    said = f"{ranks_in_words(silent)} never came to init_process_group: {came} of {size} came"
    return Diagnosis(Verdict.NEVER_ARRIVED, said, left.culprits(whys), (), evidence, root.row.remedy)


def _mismatch(
    left: Remains,
    root: Error,
    said: str,
    whys: Mapping[int, str] | None = None,
    remedy: str = "",
    evidence: tuple[str, ...] = (),
) -> Diagnosis:
    """Evidence and remedy are those of ``root`` where others are not given."""
    evidence = evidence or (left.quoted(root),)
    remedy = remedy or (root.row.remedy if root.row else "")
    return Diagnosis(Verdict.MISMATCH, said, left.culprits(whys or {}), (), evidence, remedy)


def _second_server(left: Remains, root: Error) -> Diagnosis:
    """A rank opens the store that rank 0 opens for all: two on one node cannot."""
    at = f" at {short(root.frame)}" if root.frame else ""
    why = f"it opens the store of all ranks, as rank 0 alone does{at}, and its port is taken"
    said = f"{left.who(root.rank)} says perhaps that it is rank 0: {why}"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there; if it opens "
    remedy += "a store of its own, another process has that port"
    return _mismatch(left, root, said, {root.rank: why}, remedy, (f"{left.name(root.rank)}: {root.said}",))


def _other_model(left: Remains, root: Error) -> Diagnosis | None:
    """Each rank that complains of another number of parameters names one that differs from it."""
    counts: dict[int, int] = {}
    for one in left.errors:
        if found := _PARAMETERS.search(one.text):
            counts.update({int(found[1]): int(found[2]), int(found[3]): int(found[4])})
    if not counts or root.row is None:
        return None
    numbers = list(counts.values())
    sides = sorted(set(numbers), key=lambda number: (-numbers.count(number), number))
    told = {number: [rank for rank in sorted(counts) if counts[rank] == number] for number in sides}
    known = len(sides) > 1 and len(told[sides[0]]) > len(told[sides[1]]) and not left.per_node
    whys = {
        rank: f"its model has {number} parameters, those of others {sides[0]}"
        for number in (sides[1:] if known else ())
        for rank in told[number]
    }
    lines = [f"{ranks_in_words(its)} {'has' if len(its) == 1 else 'have'} {n}" for n, its in told.items()]
    said = f"the ranks' models differ in their number of parameters: {'; '.join(lines)}"
    return _mismatch(left, root, said, whys)


def mismatch(left: Remains, root: Error) -> Diagnosis | None:
    if root.row is None or root.row.verdict is not Verdict.MISMATCH:
        return None
    if models := _other_model(left, root):
        return models
    smaller = tuple(sorted({one.rank for one in left.errors if _SIZES.search(one.text)}))
    sides = difference(left.last)
    if not sides:
        return _odd_one_aborted(left, root, smaller)
    number = f"collective {sides[0].record.sequence} of its group"
    sides = _with_aborted(sides, smaller)
    most = max(len(side.ranks) for side in sides)
    odd = [side for side in sides if len(side.ranks) < most] or sides
    lines = tuple(f"{ranks_in_words(side.ranks)} called {side.called}" for side in sides)
    whys = {
        rank: f"it called {side.called}{_line(left, rank, side.record)}, {number}"
        for side in odd
        for rank in side.ranks
    }
    said = f"ranks did not call the same collective: {'; '.join(lines)}"
    return _mismatch(left, root, said, whys, evidence=(*lines, f"rank {root.rank}: {root.said}"))


def _with_aborted(sides: Sequence[Side], smaller: tuple[int, ...]) -> list[Side]:
    """A rank that got more than it expected aborts without a record: it had called the smaller one."""
    least = min(sides, key=lambda side: _bytes(side.record))
    more = {*least.ranks, *smaller}.difference(*(side.ranks for side in sides if side is not least))
    return [replace(side, ranks=tuple(sorted(more))) if side is least else side for side in sides]


def _odd_one_aborted(left: Remains, root: Error, smaller: tuple[int, ...]) -> Diagnosis | None:
    """All records that are left agree: who aborted had called something smaller than what it was sent.

    The others may have gone on since: what they called then is the newest that is large enough. They must
    be more than those that aborted: of two, either may be wrong.
    """
    mates = {one.rank: found for one in left.last if (found := _with(one, smaller))}
    if not smaller:
        return None
    sent = max(sent for sent, _ in _pairs(left))
    records = [record for found in mates.values() for record in found]
    large = [record for record in records if _bytes(record) >= sent]
    called = max(large, key=lambda one: one.at, default=None)
    whole = len({*mates, *smaller}) == len(left.nodes) and not left.per_node
    if not mates or (whole and not called):
        return _sender_untold(left, root)  # none of all recorded calls is so large: it was sent by itself
    if called and called.operation not in EQUAL_SIZES:
        return _sizes_apart(left, root, called)
    if elsewhere := _stood_elsewhere(left, root, smaller):
        return elsewhere
    if called:  # of several groups that they share, the one in which it was sent
        of_group = (
            (rank, [one for one in all_ if one.group == called.group]) for rank, all_ in mates.items()
        )
        mates = {rank: found for rank, found in of_group if found}
    newest = {rank: max(found, key=lambda one: one.at) for rank, found in mates.items()}
    alike = {rank: like for rank, like in newest.items() if _is_expected(left, rank, like)}
    expected = {expected for _, expected in _pairs(left)}  # perhaps who aborted called the same as others
    equal = (record for record in records if not called and _bytes(record) in expected)
    if like := next(iter(alike.values()), next(equal, None)):
        return _sender_unknown(left, root, (*smaller, *(alike or mates)), like)
    together = tuple(sorted(mates))
    what = f"{called.operation} of {called.sizes} {called.types}" if called else ""
    if len(together) <= len(smaller):
        return _either(left, root, together, what)
    others = f"the others' {what}" if what else "what the others called"
    others += _width(left)
    whys = {rank: f"it called something smaller than {others}{_line(left, rank)}" for rank in smaller}
    said = f"{ranks_in_words(smaller)} did not call the same collective as {ranks_in_words(together)}"
    calls = (f"{ranks_in_words(together)} called {what}",) if what else ()
    return _mismatch(left, root, said, whys, evidence=(*calls, f"rank {root.rank}: {root.said}"))


def _pairs(left: Remains) -> list[tuple[int, int]]:
    """The bytes that each rank which complained of sizes was sent, and those that it had expected."""
    found = (_SIZES.search(one.text) for one in left.errors)
    return [(int(sizes[1]), int(sizes[2])) for sizes in found if sizes]


def _width(left: Remains) -> str:
    """Of what type it may have been, where who aborted expected a whole part of what it was sent."""
    pairs = set(_pairs(left))
    times = {sent // wanted for sent, wanted in pairs if wanted and sent % wanted == 0}
    part = {2: "half", 4: "a quarter of", 8: "an eighth of"}.get(next(iter(times), 0), "")
    if len(pairs) != 1 or not part:
        return ""
    return f" ({part} the bytes: a type of {part} the width, or a smaller shape)"


def _sender_untold(left: Remains, root: Error) -> Diagnosis | None:
    """No record tells what was called, as of sends and receives: who was sent too much may well be right."""
    if not _SIZES.search(root.text):
        return None
    said = f"{left.who(root.rank, root.inner)} was sent more than it expected{_line(left, root.rank)}: "
    said += "what is left does not tell whether it or who sent that is wrong"
    remedy = "compare the shapes and types that both ends of that call give"
    return _mismatch(left, root, said, remedy=remedy)


def _with(one: RankSeen, ranks: tuple[int, ...]) -> list[Record]:
    """The records of ``one`` in the groups in which it is together with all of ``ranks``."""
    spans = {group.name: unfolded(group.ranks) for group in one.groups if group.ranks}
    return [record for record in one.records if set(ranks) <= set(spans.get(record.group, ranks))]


def _is_expected(left: Remains, rank: int, record: Record) -> bool:
    """Whether who aborted had expected this, whole or in the parts that ranks send, and was not sent it."""
    groups = [group for one in left.last if one.rank == rank for group in one.groups]
    size = next((group.size for group in groups if group.name == record.group), 0) or len(left.nodes)
    whole = _bytes(record)
    parts = [-(-whole // share) for share in (1, 2, size, 2 * size)] if whole else []
    was_sent, expected = (
        any(0 <= it - part < _ROUNDED for it in its for part in parts) for its in zip(*_pairs(left))
    )
    return expected and not was_sent


def _stood_elsewhere(left: Remains, root: Error, smaller: tuple[int, ...]) -> Diagnosis | None:
    """The one rank that stood in another line than all others, who were in a call that none leaves alone."""
    stood = {one.rank: place(one.stack) for one in left.stood}
    lines = {one.rank: one.frame for one in left.errors if one.frame}
    lines.update((rank, at.frame) for rank, at in stood.items())
    sides: dict[str, list[int]] = {}
    for rank in range(len(left.nodes)):
        sides.setdefault(lines.get(rank, ""), []).append(rank)
    if len(sides) != 2 or "" in sides or root.row is None:
        return None
    (there, odd), (here, others) = sorted(sides.items(), key=lambda side: len(side[1]))
    calls = {stood[rank].operation for rank in others if rank in stood}
    if len(odd) > 1 or len(others) < 3 or not set(smaller) < set(others) or not calls or not calls <= _OF_ALL:
        return None
    (operation,) = calls if len(calls) == 1 else ("collectives",)
    why = f"it was at {short(there)} where the others were in {operation} at {short(here)}"
    said = f"rank {odd[0]} on {left.node(odd[0])} did not call what the others called: {why}"
    return _mismatch(left, root, said, {odd[0]: why})


def _either(left: Remains, root: Error, others: tuple[int, ...], called: str) -> Diagnosis:
    """As many called the one as the other: both are told, and nobody is blamed."""
    who = left.who(root.rank, root.inner)
    did = f"called {called}" if called else "called something larger"
    said = f"{who} was sent more than it expected{_line(left, root.rank)}; {ranks_in_words(others)} {did}: "
    return _mismatch(left, root, f"{said}what is left does not tell which of them is wrong")


def _sender_unknown(left: Remains, root: Error, agree: tuple[int, ...], like: Record) -> Diagnosis:
    """Who sent more than the others expected left no record: it is none of those that ``agree``."""
    others = tuple(rank for rank in range(len(left.nodes)) if rank not in agree)
    who = ranks_in_words(others) if others else "another rank"
    said = f"{left.who(root.rank, root.inner)} was sent more than it expected{_line(left, root.rank)}: "
    they = "they" if len(others) > 1 else "it"
    said += f"what is left does not tell by whom; {who} left no record of what {they} called"
    called = f"{like.operation} of {like.sizes} {like.types}"
    evidence = (f"of that size is {called}, which is in the records that are left", left.quoted(root))
    return _mismatch(left, root, said, evidence=evidence)


def _sizes_apart(left: Remains, root: Error, called: Record) -> Diagnosis:
    """Where each pair of ranks agrees on a size of its own, either end may be the wrong one.

    It is the one that alone brings another size than all had ever brought before.
    """
    if odd := _alone_changed(left, called):
        rank, record, usual = odd
        why = f"it called {record.operation} of {record.sizes} {record.types}, collective {record.sequence} "
        why += f"of its group, where the others called it of {usual}, as it had before"
        said = f"rank {rank} on {left.node(rank)} did not bring what the others expected: {why}"
        return _mismatch(left, root, said, {rank: why})
    who = left.who(root.rank, root.inner)
    said = f"{who} was sent more than it expected in {called.operation}{_line(left, root.rank)}: "
    said += "what is left does not tell whether it or who sent that is wrong"
    remedy = "compare what the ranks pass as input and output sizes there: each pair must agree"
    return _mismatch(left, root, said, remedy=remedy)


def _alone_changed(left: Remains, called: Record) -> tuple[int, Record, str] | None:
    """Of three and more ranks the one that differs in size in this call, which had one size in all before."""
    turns: dict[int, dict[int, Record]] = {}
    for one in left.last:
        for record in one.records:
            if (record.group, record.operation) == (called.group, called.operation):
                turns.setdefault(record.sequence, {})[one.rank] = record
    usual: set[tuple[str, str]] = set()
    for number, (_, turn) in enumerate(sorted(turns.items())):
        sizes = {rank: (record.sizes, record.types) for rank, record in turn.items()}
        odd = [rank for rank, size in sizes.items() if size not in usual]
        if number >= USUALLY and len(usual) == 1 and len(odd) == 1 and len(turn) > 2:
            return odd[0], turn[odd[0]], " ".join(usual.pop())
        usual |= set(sizes.values())
    return None


def _line(left: Remains, rank: int, record: Record | None = None) -> str:
    """Where a rank stood that complained of sizes that differ, or was still in the call of ``record``."""
    frames = [one.frame for one in left.errors if one.rank == rank and one.frame and _SIZES.search(one.text)]
    stood = [one for one in left.stood if one.rank == rank and one.records and record]
    frames += [place(one.stack).frame for one in stood if max(one.records, key=lambda r: r.at) == record]
    return f" at {short(frames[-1])}" if frames and frames[-1] else ""


def _bytes(record: Record) -> int:
    """About how large: only the order counts."""
    width = {"Double": 8, "Long": 8, "ComplexFloat": 8, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1}
    shapes = re.findall(r"\[([\d, ]*)\]", record.sizes)
    total = sum(math.prod(map(int, shape.replace(",", " ").split())) for shape in shapes)
    return total * width.get(record.types.partition(",")[0], 4)
