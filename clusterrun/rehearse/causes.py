"""Names the cause of what a rehearsal found, by what differs first, and what to write instead; pure.

An accusation needs a proof in the traces. What is not proven is UNKNOWN, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.rehearse.checkpoint_damage import loaded_in_part, no_step_taken, read_in_part
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, Severity, unknown
from clusterrun.rehearse.loss_spread import LossSpread, spread
from clusterrun.rehearse.notices import came_to_its_end, complete, notice_met
from clusterrun.rehearse.part_differences import loaded_beside, what_differs
from clusterrun.rehearse.rank_trace import Start
from clusterrun.rehearse.resumed_step import left_out, weights_of_no_step, wrong_step
from clusterrun.rehearse.resumption import (
    FirstDifference,
    Reference,
    counted,
    differences,
    moves,
    reference,
    resumed,
)

CLOSE = 0.05
"""How far losses may part, as a share, that began equal but for rounding."""
RESTORED = ("weights", "state", "rates", "scheduler", "data")


def expected(first: Start, differs: str, start: Start) -> Reference:
    """What a restart after ``start`` should compute; ``differs``: in what undisturbed runs differ, or ''.

    Of runs that differ by themselves, each can be compared with its own past alone.
    """
    return reference(start if differs else first, start)


def judge(
    first: Start, differs: str, seen: FaultRun, second: Start | None = None, known: Reference | None = None
) -> tuple[Discovery, ...]:
    """What a fault showed, the cause first.

    ``differs``: the part in which the undisturbed runs ``first`` and ``second`` differ, or ''.
    ``known``: what is `expected`, if that was made before.
    """
    if len(seen.lives) < 2:
        return (unknown(f"the ranks were not started again: {seen.tail}"),)
    start, last = seen.lives[0], seen.restarted
    known = known or expected(first, differs, start)
    if not any(rank.before for rank in last.ranks.values()):
        return (came_to_its_end(start) if complete(seen) else no_step_taken(seen),)
    notice = notice_met(known, seen)
    if not moves(first):
        return (unknown("no step changes the weights: from which step a restart goes on cannot be seen"),)
    steps = resumed(known, last)
    wrong = wrong_step(seen, known, steps)
    if wrong:
        if wrong.cause is Cause.PARAMETERS and (path := read_in_part(seen)):
            wrong = loaded_in_part(path, seen)
        return (wrong,)  # what that loses is not a fault of how the notice was met
    at = next(step for step in steps.values() if step is not None)
    if seen.elastic:
        size = f"{len(last.ranks)} rank{'s' if len(last.ranks) > 1 else ''}"
        return (Discovery(Cause.NONE, f"resumed at step {at} on {size}"),)
    found = differences(known, last, at)
    if differs:  # arithmetic may differ by itself; what a checkpoint holds may not
        found = tuple(one for one in found if one.part in RESTORED and one.part != differs)
    if found and at == 0 and loaded_beside(seen, found[0]):
        return (left_out(seen) or weights_of_no_step(seen, steps, seen.made()),)
    if [one.part for one in found] == ["rounding"]:
        return (*notice, _rounded(first, seen, at, found[0]))
    if found and (path := read_in_part(seen)):
        return (loaded_in_part(path, seen),)
    if found:
        return (*_differences(known, seen, at, found), *notice)
    apart = spread(first, second, last, at) if differs and second else None
    unheard = (one for one in notice if one.level is not Severity.OK)
    return (_equal(seen, at, not differs, notice, apart), *unheard)


def _differences(
    known: Reference, seen: FaultRun, at: int, found: Sequence[FirstDifference]
) -> list[Discovery]:
    """What each difference proves, the first in time first."""
    head = f"resumed at step {at}; step {found[0].step} differs: "
    count = counted(known, seen.restarted, at) if found[0].part == "data" else (0, 0)
    return [what_differs(one, head if not i else "", seen, count, at) for i, one in enumerate(found)]


def _rounded(first: Start, seen: FaultRun, at: int, one: FirstDifference) -> Discovery:
    """Forward equal to the bit, weights not: the sum over more than two ranks; the losses must stay close."""
    for rank, trace in seen.restarted.ranks.items():
        right = {step.n: step.loss for step in first.ranks[rank].steps} if rank in first.ranks else {}
        for step in trace.steps:
            loss = right.get(at + step.n)
            if loss is None or step.loss is None or abs(step.loss - loss) <= CLOSE * max(1.0, abs(loss)):
                continue
            said = (
                f"step {one.step} is equal but for rounding, and at step {at + step.n} the losses have parted"
            )
            return unknown(
                f"{said}: {step.loss:.6g} instead of {loss:.6g}; rehearse with 2 ranks to compare by bits"
            )
    same = f"equal to the last bit up to the sum of the gradients of {len(seen.restarted.ranks)} ranks"
    return _resumed(seen, at, f"{same}, then but for rounding")


def _resumed(seen: FaultRun, at: int, same: str) -> Discovery:
    lost = max(0, seen.struck_at - at)
    cost = f", {lost} steps done again" if lost else ""
    return Discovery(Cause.NONE, f"resumed at step {at}{cost}; {same}", step=at)


def _equal(
    seen: FaultRun, at: int, deterministic: bool, notice: Sequence[Discovery], apart: LossSpread | None
) -> Discovery:
    last = seen.restarted
    taken = last.last or max(rank.last for rank in last.ranks.values())  # ranks may go on alone for a while
    if taken < 1:
        return unknown(f"resumed at step {at}, but no step was taken after it: {seen.tail}")
    if apart and apart.parted:
        why = "what was not restored cannot be named while undisturbed runs differ"
        return unknown(f"resumed at step {at}; then {apart}: {why}")
    for heard in notice:
        if heard.level is Severity.OK:
            return heard
    same = f"{taken} steps equal to the last bit" if deterministic else "what was saved is restored"
    return _resumed(seen, at, same + (f", {apart}" if apart else ""))
