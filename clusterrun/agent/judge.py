"""What follows when an attempt is over: another attempt, or the end of the run; knows no link, no clock."""

from __future__ import annotations

from clusterrun.agent import lineage, verdict
from clusterrun.agent.verdict import Kind, Verdict
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterrun.agent.tally import Tally
    from clusterrun.agent.verdict import Mishap
    from clusterrun.model.orders import Orders
    from clusterrun.model.record import Attempt

CAUSE_SECONDS = 2.0
"""A request to end that comes this soon after the first mishap is taken for its cause."""
FREE_PORT_RETRIES = 3
"""How often an attempt whose port was taken is made again without being charged to ``max_restarts``."""

COMPLETED = Verdict(State.COMPLETED, "every rank exited 0", 0)
SUPERSEDED = Verdict(State.FAILED, "another coordinator took the run over", 1)
_CAUSES = {Kind.NODE: "node", Kind.HANG: "hang"}
_NOT_OF_RANKS = (Kind.NODE, Kind.LAUNCHER)


@frozen
class Ruling:
    """``again`` says why another attempt is made; where it is empty, ``verdict`` is how the run ends.

    ``cause`` is one of ``contract.CAUSES``; the attempt begins after a pause of so many seconds.
    """

    again: str
    verdict: Verdict
    mishap: Mishap | None = None
    cause: str = ""
    pause: float = 0.0


class Judge:
    """Remembers who asked for an end; what was used of the budgets stands in the record of the attempts.

    ``trained``: ranks have run before, so that what keeps them from starting is not how they are called.
    """

    def __init__(self, orders: Orders) -> None:
        self.asked: Verdict | None = None
        self.superseded = False
        self.trained = False
        self._asked_first = False
        self._max_restarts = orders.max_restarts
        self._no_progress = orders.survival.no_progress

    def ask(self, wish: Verdict, since_mishap: float | None) -> bool:
        """Somebody wants the run to end; False where somebody else asked before.

        ``since_mishap``: seconds since the first mishap of this attempt; None where there is none.
        """
        if self.asked is not None:
            return False
        self.asked = wish
        self._asked_first = since_mishap is None or since_mishap <= CAUSE_SECONDS
        return True

    def cause(self, tally: Tally) -> str:
        """Why the attempt is being stopped, in words."""
        if self.superseded:
            return SUPERSEDED.reason
        if self.asked is not None and self._asked_first:
            return self.asked.reason
        return tally.first.failure.why if tally.mishaps else ""

    def rule(self, tally: Tally, attempts: Sequence[Attempt], room: bool) -> Ruling:
        """What follows, once no rank of ``tally``'s epoch lives anywhere but what is stuck.

        ``room``: enough nodes may still train. ``attempts`` ends with this one.
        """
        self.trained = self.trained or not tally.missing
        if self.superseded:
            return Ruling("", SUPERSEDED)
        if tally.completed:
            return Ruling("", COMPLETED)
        if self.asked is not None and (self._asked_first or not tally.mishaps):
            return Ruling("", self.asked)
        mishap = tally.first
        end = verdict.of_mishap(mishap, tally.stuck)
        ruling = self._ruling(mishap, end, attempts, room)
        if self.asked is not None and (ruling.again or mishap.ended_by_request):
            return Ruling("", self.asked, mishap)
        # A node that is lost was waited for long enough.
        return replace(ruling, pause=0.0) if mishap.kind is Kind.NODE else ruling

    def rule_before(self, mishap: Mishap, end: Verdict, attempts: Sequence[Attempt], room: bool) -> Ruling:
        """What follows where it came to no rank; ``end`` is how the run ends if not by another attempt."""
        if self.superseded:
            return Ruling("", SUPERSEDED)
        if self.asked is not None:
            return Ruling("", self.asked)
        return self._ruling(mishap, end, attempts, room)

    def _ruling(self, mishap: Mishap, end: Verdict, attempts: Sequence[Attempt], room: bool) -> Ruling:
        closed = (*attempts[:-1], replace(attempts[-1], failure=mishap.failure))
        if not room or (mishap.kind is Kind.START and not self.trained):
            return Ruling("", end, mishap)
        if mishap.kind is Kind.COLLISION and lineage.port_retries(closed) < FREE_PORT_RETRIES:
            return Ruling("with another port", end, mishap, "port")
        used = lineage.restarts_used(closed)
        # What ranks cannot help says nothing of their progress.
        vain = "" if mishap.kind in _NOT_OF_RANKS else lineage.in_vain(closed, self._no_progress)
        if vain or used >= self._max_restarts:
            return Ruling("", replace(end, reason=vain) if vain and self._max_restarts else end, mishap)
        words = f"restart {used + 1} of {self._max_restarts}"
        return Ruling(words, end, mishap, _CAUSES.get(mishap.kind, "failure"), lineage.pause(used))
