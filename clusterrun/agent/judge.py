"""What follows when an attempt is over: another attempt, or the end of the run; knows no link, no clock."""

from __future__ import annotations

from clusterrun.agent import verdict
from clusterrun.agent.verdict import Kind, Verdict
from clusterrun.model.frozen import frozen
from clusterrun.model.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.agent.tally import Tally
    from clusterrun.agent.verdict import Mishap

CAUSE_SECONDS = 2.0
"""A request to end that comes this soon after the first mishap is taken for its cause."""
FREE_PORT_RETRIES = 3
"""How often an attempt whose port was taken is made again without being charged to ``max_restarts``."""

COMPLETED = Verdict(State.COMPLETED, "every rank exited 0", 0)
SUPERSEDED = Verdict(State.FAILED, "another coordinator took the run over", 1)


@frozen
class Ruling:
    """``again`` says why another attempt is made; where it is empty, ``verdict`` is how the run ends."""

    again: str
    verdict: Verdict
    mishap: Mishap | None = None


class Judge:
    """Remembers who asked for an end, and what restarts were used."""

    def __init__(self, max_restarts: int) -> None:
        self.asked: Verdict | None = None
        self.superseded = False
        self._asked_first = False
        self._max_restarts = max_restarts
        self._restarts = 0
        self._port_retries = 0

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
        return verdict.first(tally.mishaps).failure.why if tally.mishaps else ""

    def rule(self, tally: Tally, nodes_lost: bool) -> Ruling:
        """What follows, once no rank of ``tally``'s epoch lives anywhere; a restart is charged here."""
        if self.superseded:
            return Ruling("", SUPERSEDED)
        if tally.completed:
            return Ruling("", COMPLETED)
        if self.asked is not None and (self._asked_first or not tally.mishaps):
            return Ruling("", self.asked)
        mishap = verdict.first(tally.mishaps)
        again = "" if nodes_lost or tally.stuck else self._again(mishap)
        if self.asked is not None and (again or mishap.ended_by_request):
            return Ruling("", self.asked, mishap)
        if again:
            self._charge(again)
        return Ruling(again, verdict.of_mishap(mishap, tally.stuck), mishap)

    def _again(self, mishap: Mishap) -> str:
        if mishap.kind is Kind.COLLISION and self._port_retries < FREE_PORT_RETRIES:
            return _OTHER_PORT
        if mishap.kind in (Kind.RANK, Kind.COLLISION, Kind.HANG) and self._restarts < self._max_restarts:
            return f"restart {self._restarts + 1} of {self._max_restarts}"
        return ""

    def _charge(self, again: str) -> None:
        if again == _OTHER_PORT:
            self._port_retries += 1
        else:
            self._restarts += 1


_OTHER_PORT = "with another port"
