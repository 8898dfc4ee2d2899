"""Why a run failed, from what it left: its state, the errors its ranks printed, their last records; pure."""

from __future__ import annotations

import re
import signal

from clusterrun.diagnosis.joining import difference
from clusterrun.diagnosis.words import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.model.frozen import frozen
from clusterrun.model.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.diagnosis.errors import Error
    from clusterrun.diagnosis.evidence import Seen
    from clusterrun.diagnosis.joining import Difference, Side
    from clusterrun.model.record import Failure

SAME_MOMENT = 1.0
"""Seconds: the time of a line is known no better."""
MOST_WORDS = 180
BEFORE = 60.0
"""Seconds before the first failure: an error that was survived for longer did not end the run."""
_SIZES = re.compile(r"op\.nbytes\. (\d+) vs (\d+)")
_OUT_OF_MEMORY = re.compile(r"(?i:oom[-_ ]kill|out of memory)")


@frozen
class Remains:
    """What a run left. ``nodes`` are those of its ranks, by rank; ``notes`` other words about it.

    ``last`` are the flight records of ranks that could still leave them.
    """

    state: State
    reason: str
    failure: Failure | None
    errors: tuple[Error, ...]
    nodes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    last: tuple[Seen, ...] = ()

    def node(self, rank: int) -> str:
        """Where a rank ran."""
        return self.nodes[rank] if 0 <= rank < len(self.nodes) else ""


def explain(left: Remains) -> Diagnosis:
    """What ended the run: the first error in time that is no consequence of another one."""
    root = _root(left)
    found = (_mismatch(left, root) if root else None) or (_of_error(left, root) if root else _of_end(left))
    return _with_consequences(left, found)


def _root(left: Remains) -> Error | None:
    """The earliest error; of the same moment the one whose meaning is known, then of who ended first."""
    since = left.failure.at - BEFORE if left.failure else 0.0
    roots = [one for one in left.errors if not one.consequence and (not one.at or one.at >= since)]
    if not roots or _killed(left):
        return None
    earliest = min(one.at for one in roots)
    first = left.failure.rank if left.failure else -1
    together = [one for one in roots if one.at <= earliest + SAME_MOMENT]
    return min(together, key=lambda one: (one.row is None, one.rank != first, one.at, one.rank))


def _killed(left: Remains) -> bool:
    """A rank that was killed says nothing, and what others say follows from it."""
    failure = left.failure
    if failure is None or failure.rank < 0 or failure.code != -signal.SIGKILL:
        return False
    return not any(
        one.at and one.at < failure.at - SAME_MOMENT and not one.consequence for one in left.errors
    )


def _of_error(left: Remains, root: Error) -> Diagnosis:
    node = left.node(root.rank)
    verdict = root.row.verdict if root.row else Verdict.CRASHED
    meaning = f": {root.row.cause}" if root.row else ""
    said = f"rank {root.rank} on {node} failed first{meaning}"
    remedy = root.row.remedy if root.row else f"clusterrun logs --rank {root.rank} shows all that it said"
    same = tuple(sorted({one.rank for one in left.errors if one.text == root.text} - {root.rank}))
    evidence = [f"rank {root.rank}: {root.said}"]
    if same:
        evidence.append(f"{ranks_in_words(same)} said the same")
    return Diagnosis(verdict, said, (Culprit(root.rank, node, root.said),), (), tuple(evidence), remedy)


def _of_end(left: Remains) -> Diagnosis:
    """Nobody printed an error of its own."""
    failure = left.failure
    if failure is None:
        return _without_failure(left)
    who = f"{_who(failure)} "
    why = failure.why[len(who) :] if failure.why.startswith(who) else failure.why
    culprit = Culprit(failure.rank, failure.node, why)
    words = (*left.notes, left.reason, *failure.last_lines)
    memory = [note for note in words if _OUT_OF_MEMORY.search(note)]
    killed = failure.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if left.state is State.OUT_OF_MEMORY or (killed and memory):
        said = f"{_who(failure)} was killed because memory ran out"
        remedy = "ask for more with --mem, use fewer data-loader workers, or a smaller batch"
        return Diagnosis(Verdict.OUT_OF_MEMORY, said, (culprit,), (), (failure.why, *memory), remedy)
    remedy = "clusterrun logs shows what was said before"
    if killed:
        remedy = "was it the kernel, for want of memory (--mem), or somebody with kill -9?"
    if failure.rank < 0:
        remedy = "clusterrun report shows what the pre-flight check found; --exclude leaves a node out"
    return Diagnosis(Verdict.CRASHED, failure.why, (culprit,), (), _silence(left), remedy)


def _silence(left: Remains) -> tuple[str, ...]:
    failure = left.failure
    if failure is None or failure.rank < 0 or any(one.rank == failure.rank for one in left.errors):
        return ()
    return (f"rank {failure.rank} printed no error",)


def _without_failure(left: Remains) -> Diagnosis:
    prefix = f"{Verdict.ALONE.value}: "
    alone = [note[len(prefix) :] for note in left.notes if note.startswith(prefix)]
    if alone:
        remedy = "docs/frameworks.md says what a framework needs to join its ranks"
        return Diagnosis(Verdict.ALONE, alone[0], (), (), tuple(alone[1:]), remedy)
    if left.state is State.COMPLETED:
        return Diagnosis(Verdict.NOTHING, "the run ended well")
    return Diagnosis(Verdict.NOT_RUNNING, left.reason or f"the run is {left.state.value}")


def _who(failure: Failure) -> str:
    return f"rank {failure.rank} on {failure.node}" if failure.rank >= 0 else failure.node


# --- ranks that did not agree, known by what was left ---


def _mismatch(left: Remains, root: Error) -> Diagnosis | None:
    if root.row is None or root.row.verdict is not Verdict.MISMATCH:
        return None
    smaller = tuple(sorted({one.rank for one in left.errors if _SIZES.search(one.text)}))
    found = difference(left.last)
    if found is None:
        return _odd_one_aborted(left, root, smaller)
    sides = _with_aborted(found, smaller)
    most = max(len(ranks) for _, ranks in sides)
    odd = [(side, ranks) for side, ranks in sides if len(ranks) < most] or list(sides)
    lines = tuple(f"{ranks_in_words(ranks)} called {side.called}" for side, ranks in sides)
    culprits = tuple(
        Culprit(rank, left.node(rank), f"it called {side.called}, collective {found.sequence} of its group")
        for side, ranks in odd
        for rank in ranks
    )
    said = f"ranks did not call the same collective: {'; '.join(lines)}"
    evidence = (*lines, f"rank {root.rank}: {root.said}")
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), evidence, root.row.remedy)


def _with_aborted(found: Difference, smaller: tuple[int, ...]) -> list[tuple[Side, tuple[int, ...]]]:
    """A rank that got more than it expected aborts without a record: it had called the smaller one."""
    known = {rank for side in found.sides for rank in side.ranks}
    least = min(found.sides, key=lambda side: _bytes(side.record.sizes, side.record.types))
    more = tuple(rank for rank in smaller if rank not in known)
    return [
        (side, tuple(sorted((*side.ranks, *more))) if side is least else side.ranks) for side in found.sides
    ]


def _odd_one_aborted(left: Remains, root: Error, smaller: tuple[int, ...]) -> Diagnosis | None:
    """All records that are left agree: who aborted had called something smaller."""
    together = tuple(one.rank for one in left.last if one.records)
    if not together or not smaller or len(smaller) > len(together) or root.row is None:
        return None
    called = max((record for one in left.last for record in one.records), key=lambda one: one.sequence)
    what = f"{called.operation} of {called.sizes} {called.types}"
    culprits = tuple(
        Culprit(rank, left.node(rank), f"it called something smaller than the others' {what}")
        for rank in smaller
    )
    said = f"{ranks_in_words(smaller)} did not call the same collective as {ranks_in_words(together)}"
    evidence = (f"{ranks_in_words(together)} called {what}", f"rank {root.rank}: {root.said}")
    return Diagnosis(Verdict.MISMATCH, said, culprits, (), evidence, root.row.remedy)


def _bytes(sizes: str, types: str) -> int:
    """About how large: only the order counts."""
    width = {"Double": 8, "Long": 8, "ComplexFloat": 8, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1}
    total = 0
    for shape in re.findall(r"\[([\d, ]*)\]", sizes):
        count = 1
        for number in filter(None, shape.replace(" ", "").split(",")):
            count *= int(number)
        total += count
    return total * width.get(types.partition(",")[0], 4)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS].rpartition(' ')[0]} …"


def _with_consequences(left: Remains, found: Diagnosis) -> Diagnosis:
    """The same, with who only noticed."""
    to_blame = {one.rank for one in found.culprits}
    noticed = {one.rank: one for one in left.errors if one.consequence and one.rank not in to_blame}
    if not noticed:
        return found
    first = noticed[min(noticed)]
    line = f"a consequence only, of {ranks_in_words(tuple(sorted(noticed)))}: {_cut(first.text)}"
    return Diagnosis(
        found.verdict, found.said, found.culprits, found.groups, (*found.evidence, line), found.remedy
    )
