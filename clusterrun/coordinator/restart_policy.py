"""What follows when an attempt is over: another attempt, or the end of the run; knows no link, no clock."""

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
"""A request to end that comes this soon after the first mishap is taken for its cause."""
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
    mishap: FailureEvent | None = None
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

    def ask(self, wish: RunOutcome, since_mishap: float | None) -> bool:
        """Somebody wants the run to end; False where somebody else asked before.

        ``since_mishap``: seconds since the first mishap of this attempt; None where there is none.
        """
        if self.asked is not None:
            return False
        self.asked = wish
        self._asked_first = since_mishap is None or since_mishap <= CAUSE_SECONDS
        return True

    def cause(self, tally: RankOutcomes) -> str:
        """Why the attempt is being stopped, in words."""
        if self.superseded:
            return SUPERSEDED.reason
        if self.asked is not None and self._asked_first:
            return self.asked.reason
        return tally.first.failure.why if tally.mishaps else ""

    def rule(self, tally: RankOutcomes, attempts: Sequence[Attempt], room: bool) -> RestartDecision:
        """What follows, once no rank of ``tally``'s epoch lives anywhere but what is stuck.

        ``room``: enough nodes may still train. ``attempts`` ends with this one.
        """
        self.trained = self.trained or not tally.missing
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if tally.completed:
            return RestartDecision("", COMPLETED)
        if self.asked is not None and (self._asked_first or not tally.mishaps):
            return RestartDecision("", self.asked)
        mishap = tally.first
        end = failures.of_mishap(mishap, tally.stuck)
        ruling = self._ruling(mishap, end, attempts, room)
        if self.asked is not None and (ruling.again or mishap.ended_by_request):
            return RestartDecision("", self.asked, mishap)
        # A node that is lost was waited for long enough.
        return replace(ruling, pause=0.0) if mishap.kind is FailureKind.NODE else ruling

    def rule_before(
        self, mishap: FailureEvent, end: RunOutcome, attempts: Sequence[Attempt], room: bool
    ) -> RestartDecision:
        """What follows where it came to no rank; ``end`` is how the run ends if not by another attempt."""
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if self.asked is not None:
            return RestartDecision("", self.asked)
        return self._ruling(mishap, end, attempts, room)

    def _ruling(
        self, mishap: FailureEvent, end: RunOutcome, attempts: Sequence[Attempt], room: bool
    ) -> RestartDecision:
        closed = (*attempts[:-1], replace(attempts[-1], failure=mishap.failure))
        if not room or (mishap.kind is FailureKind.START and not self.trained):
            return RestartDecision("", end, mishap)
        if mishap.kind is FailureKind.COLLISION and restart_budget.port_retries(closed) < FREE_PORT_RETRIES:
            return RestartDecision("with another port", end, mishap, "port")
        used = restart_budget.restarts_used(closed)
        # What ranks cannot help says nothing of their progress.
        vain = "" if mishap.kind in _NOT_OF_RANKS else restart_budget.in_vain(closed, self._no_progress)
        if vain or used >= self._max_restarts:
            return RestartDecision(
                "", replace(end, reason=vain) if vain and self._max_restarts else end, mishap
            )
        words = f"restart {used + 1} of {self._max_restarts}"
        return RestartDecision(
            words, end, mishap, _CAUSES.get(mishap.kind, "failure"), restart_budget.pause(used)
        )
