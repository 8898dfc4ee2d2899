"""Whether a failed attempt is followed by another one, or by the end of the run; pure."""

from __future__ import annotations

from clusterrun.coordinator import failures, restart_budget
from clusterrun.coordinator.failures import FailureKind, RunOutcome
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterrun.coordinator.failures import FailureEvent
    from clusterrun.coordinator.rank_outcomes import RankOutcomes
    from clusterrun.model.orders import Orders
    from clusterrun.model.record import Attempt

CAUSE_SECONDS = 2.0
"""A request to end that comes this soon after the first failure is taken for its cause."""
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

    def cause(self, outcomes: RankOutcomes) -> str:
        """Why the attempt is being stopped, in words."""
        if self.superseded:
            return SUPERSEDED.reason
        if self.asked is not None and self._asked_first:
            return self.asked.reason
        return outcomes.first.failure.why if outcomes.failure_events else ""

    def rule(self, outcomes: RankOutcomes, attempts: Sequence[Attempt], room: bool) -> RestartDecision:
        """What follows, once no rank of ``outcomes``'s epoch lives anywhere but what is stuck.

        ``room``: enough nodes may still train. ``attempts`` ends with this one.
        """
        self.trained = self.trained or not outcomes.missing
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if outcomes.completed:
            return RestartDecision("", COMPLETED)
        if self.asked is not None and (self._asked_first or not outcomes.failure_events):
            return RestartDecision("", self.asked)
        failure_event = outcomes.first
        end = failures.of_failure_event(failure_event, outcomes.stuck)
        ruling = self._ruling(failure_event, end, attempts, room)
        if self.asked is not None and (ruling.again or failure_event.ended_by_request):
            return RestartDecision("", self.asked, failure_event)
        # A node that is lost was waited for long enough.
        return replace(ruling, pause=0.0) if failure_event.kind is FailureKind.NODE else ruling

    def rule_before(
        self, failure_event: FailureEvent, end: RunOutcome, attempts: Sequence[Attempt], room: bool
    ) -> RestartDecision:
        """What follows where it came to no rank; ``end`` is how the run ends if not by another attempt."""
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if self.asked is not None:
            return RestartDecision("", self.asked)
        return self._ruling(failure_event, end, attempts, room)

    def _ruling(
        self, failure_event: FailureEvent, end: RunOutcome, attempts: Sequence[Attempt], room: bool
    ) -> RestartDecision:
        closed = (*attempts[:-1], replace(attempts[-1], failure=failure_event.failure))
        if not room or (failure_event.kind is FailureKind.START and not self.trained):
            return RestartDecision("", end, failure_event)
        if (
            failure_event.kind is FailureKind.COLLISION
            and restart_budget.port_retries(closed) < FREE_PORT_RETRIES
        ):
            return RestartDecision("with another port", end, failure_event, "port")
        used = restart_budget.restarts_used(closed)
        # What ranks cannot help says nothing of their progress.
        vain = (
            "" if failure_event.kind in _NOT_OF_RANKS else restart_budget.in_vain(closed, self._no_progress)
        )
        if vain or used >= self._max_restarts:
            return RestartDecision(
                "", replace(end, reason=vain) if vain and self._max_restarts else end, failure_event
            )
        words = f"restart {used + 1} of {self._max_restarts}"
        return RestartDecision(
            words, end, failure_event, _CAUSES.get(failure_event.kind, "failure"), restart_budget.pause(used)
        )
