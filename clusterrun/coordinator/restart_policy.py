"""Whether a failed attempt is followed by another one, or by the end of the run; pure.

Budgets, pauses and progress are counted from the record, so they hold over coordinators, requeues and chains.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.coordinator.failures import FailureEvent, FailureKind, RunOutcome
from clusterrun.coordinator.outcomes import AttemptOver
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.orders import Orders
from clusterrun.model.record import Attempt
from clusterrun.model.states import State

CAUSE_SECONDS = 2.0
"""A request to end that comes this soon after the first failure is taken for its cause."""
CHARGED = ("failure", "node", "hang", "coordinator")
"""Causes of attempts that ``max_restarts`` pays for."""
LONGEST_PAUSE = 60.0
FREE_PORT_RETRIES = 3
"""How often an attempt whose port was taken is made again without being charged to ``max_restarts``."""

COMPLETED = RunOutcome(State.COMPLETED, "every rank exited 0", 0)
SUPERSEDED = RunOutcome(State.FAILED, "another coordinator took the run over", 1)
_CAUSES = {FailureKind.NODE: "node", FailureKind.HANG: "hang"}
_NOT_OF_RANKS = (FailureKind.NODE, FailureKind.LAUNCHER)


@frozen
class RestartDecision:
    """``again`` says why another attempt is made; where it is empty, ``verdict`` is how the run ends.

    ``cause`` is one of ``contract.CAUSES``; the attempt begins after a pause of so many seconds.
    """

    again: str
    verdict: RunOutcome
    failure_event: FailureEvent | None = None
    cause: str = ""
    pause: float = 0.0


class RestartPolicy:
    """Remembers who asked for an end; what was used of the budgets stands in the record of the attempts.

    ``trained``: ranks have run before, so that what keeps them from starting is not how they are called.
    """

    def __init__(self, orders: Orders) -> None:
        self.asked: RunOutcome | None = None
        self.superseded = False
        self.trained = False
        self._asked_first = False
        self._max_restarts = orders.max_restarts
        self._no_progress = orders.survival.no_progress

    def ask(self, wish: RunOutcome, since_failure_event: float | None) -> bool:
        """Somebody wants the run to end; False where somebody else asked before.

        ``since_failure_event``: seconds since the first failure of this attempt; None where there is none.
        """
        if self.asked is not None:
            return False
        self.asked = wish
        self._asked_first = since_failure_event is None or since_failure_event <= CAUSE_SECONDS
        return True

    @property
    def cause(self) -> str:
        """Why ranks are ended, in words; empty where that is their own failure."""
        if self.superseded:
            return SUPERSEDED.reason
        return self.asked.reason if self.asked is not None and self._asked_first else ""

    def rule(self, over: AttemptOver, attempts: Sequence[Attempt], room: bool) -> RestartDecision:
        """What follows an attempt.

        ``room``: enough nodes may still train. ``attempts`` ends with this one.
        """
        self.trained = self.trained or over.all_started
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if over.completed:
            return RestartDecision("", COMPLETED)
        failure_event = over.first
        if self.asked is not None and (self._asked_first or failure_event is None):
            return RestartDecision("", self.asked)
        assert failure_event is not None, "an attempt ended that nobody ended"
        ruling = self._ruling(failure_event, end_with(failure_event, over.stuck), attempts, room)
        if self.asked is not None and (ruling.again or failure_event.ended_by_request):
            return RestartDecision("", self.asked, failure_event)
        # A node that is lost was waited for long enough.
        return replace(ruling, pause=0.0) if failure_event.kind is FailureKind.NODE else ruling

    def rule_before(
        self, failure_event: FailureEvent, attempts: Sequence[Attempt], room: bool
    ) -> RestartDecision:
        """What follows where it came to no rank."""
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if self.asked is not None:
            return RestartDecision("", self.asked)
        return self._ruling(failure_event, end_with(failure_event), attempts, room)

    def _ruling(
        self, failure_event: FailureEvent, end: RunOutcome, attempts: Sequence[Attempt], room: bool
    ) -> RestartDecision:
        closed = (*attempts[:-1], replace(attempts[-1], failure=failure_event.failure))
        if not room or (failure_event.kind is FailureKind.START and not self.trained):
            return RestartDecision("", end, failure_event)
        if failure_event.kind is FailureKind.COLLISION and port_retries(closed) < FREE_PORT_RETRIES:
            return RestartDecision("with another port", end, failure_event, "port")
        used = restarts_used(closed)
        # What ranks cannot help says nothing of their progress.
        vain = "" if failure_event.kind in _NOT_OF_RANKS else in_vain(closed, self._no_progress)
        if vain or used >= self._max_restarts:
            return RestartDecision(
                "", replace(end, reason=vain) if vain and self._max_restarts else end, failure_event
            )
        words = f"restart {used + 1} of {self._max_restarts}"
        return RestartDecision(
            words, end, failure_event, _CAUSES.get(failure_event.kind, "failure"), pause(used)
        )


def end_with(failure_event: FailureEvent, stuck: Sequence[str] = ()) -> RunOutcome:
    """The end of a run that ``failure_event`` brought about; ``stuck`` is what could not be killed.

    The job exits with the rank's own code, 128 + n for signal n, 1 where no rank failed.
    """
    left = f"; still there, not to be killed: {', '.join(stuck)}" if stuck else ""
    state = State.NODE_FAIL if failure_event.kind is FailureKind.NODE else State.FAILED
    code = failure_event.failure.code
    return RunOutcome(state, failure_event.failure.why + left, 128 - code if code < 0 else code or 1)


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
