"""What the attempts so far leave of restarts: budgets, pauses, progress; pure.

Counted from the record, so it holds over coordinators, requeues and chains.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterrun.model.record import Attempt

CHARGED = ("failure", "node", "hang", "coordinator")
"""Causes of attempts that ``max_restarts`` pays for."""
LONGEST_PAUSE = 60.0


def restarts_used(attempts: Sequence[Attempt]) -> int:
    """How many restarts were charged since an attempt last got further than all before it."""
    return sum(attempt.cause in CHARGED for attempt in _since_progress(attempts))


def restarts_left(attempts: Sequence[Attempt], most: int) -> int:
    """How many of ``most`` restarts are left to the last of ``attempts``, and to those after it."""
    return max(0, most - restarts_used(attempts))


def port_retries(attempts: Sequence[Attempt]) -> int:
    """How many attempts were made because a port was taken."""
    return sum(attempt.cause == "port" for attempt in attempts)


def pause(used: int) -> float:
    """Seconds to wait before one more restart, where ``used`` were in vain: 0, 2, 4, 8 … at most 60."""
    return min(2.0**used, LONGEST_PAUSE) if used else 0.0


def in_vain(attempts: Sequence[Attempt], most: int) -> str:
    """In words, that the last ``most`` attempts all followed a failure and got no further; else empty.

    A run of which nothing is ever reported is not judged, nor any where ``most`` is 0.
    """
    if not most or max(map(_reach, attempts), default=_NOWHERE) == _NOWHERE:
        return ""
    fruitless = _since_progress(attempts)[-most:]
    if len(fruitless) < most or any(attempt.cause not in CHARGED for attempt in fruitless):
        return ""
    failure = fruitless[-1].failure
    why = f", {failure.why}" if failure else ""
    return f"no progress over {most} attempts: {_ends([a.step for a in fruitless])}{why}"


_NOWHERE = (-1, -1)


def _reach(attempt: Attempt) -> tuple[int, int]:
    return attempt.step, attempt.checkpoint


def _since_progress(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts after the last one that reported a higher step or checkpoint than any before it."""
    step, checkpoint = _NOWHERE
    after = 0
    for number, attempt in enumerate(attempts, 1):
        if attempt.step > step or attempt.checkpoint > checkpoint:
            after = number
            step, checkpoint = max(step, attempt.step), max(checkpoint, attempt.checkpoint)
    return attempts[after:]


def _ends(steps: Sequence[int]) -> str:
    if max(steps) < 0:
        return "none of them got to a step"
    same = min(steps) == max(steps)
    return f"each ended at step {max(steps)}" if same else f"none got beyond step {max(steps)}"
