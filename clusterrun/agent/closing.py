"""The end of a run, or of its part in this job: the last record, the farewells, the handing over."""

from __future__ import annotations

from clusterrun.agent import lineage
from clusterrun.agent.actions import Finish, Note
from clusterrun.agent.handover import Handover
from clusterrun.agent.parting import Parting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from clusterrun.agent import handover
    from clusterrun.agent.actions import CoordinatorAction
    from clusterrun.agent.events import Now
    from clusterrun.agent.ledger import Ledger
    from clusterrun.agent.roster import Roster
    from clusterrun.agent.verdict import Mishap, Verdict
    from clusterrun.model.orders import Orders


class Closing:
    """One run's last stage; ends in ``Finish``. ``handover`` hears before what ends the job."""

    def __init__(
        self,
        orders: Orders,
        job_id: str,
        roster: Roster,
        ledger: Ledger,
        say: Callable[[CoordinatorAction], None],
        course: handover.Course,
    ) -> None:
        self.handover = Handover(orders, job_id, ledger, say, course)
        self.parting = Parting(roster, say, self._leave)
        self._most, self._ledger, self._say = orders.max_restarts, ledger, say
        self._superseded = False

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        times = (self.parting.due_at, self.handover.wakes_at())
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: Now) -> None:
        """Time is up for those who are left, or for an answer."""
        self.handover.tick(now)
        self.parting.tick(now)

    def begin(self, now: Now, end: Verdict, mishap: Mishap | None, superseded: bool) -> None:
        """No rank lives anywhere, and this is how it ended."""
        self._superseded = superseded
        told = self._ledger.has_just_said(end.reason)
        self._say(Note(end.state.value if told else f"{end.state.value}: {end.reason}"))
        ruled = end
        if not superseded:
            affordable = lineage.restarts_used(self._ledger.attempts) < self._most
            ruled = self.handover.rule(now, end, affordable)
            self._ledger.close(now, end.state, mishap.failure if mishap else None)
            self._say(self._ledger.end(now, ruled))
        if ruled is not end:
            self._say(Note(f"{ruled.state.value}: {ruled.reason}"))
        self.parting.begin(now, ruled.exit_code)

    def _leave(self, now: Now, code: int) -> None:
        # What waits in the queue may be the very job that took the run over.
        if self._superseded:
            self._say(Finish(code))
        else:
            self.handover.relay.leave(now, code)
