"""The end of a run, or of its part in this job: the last record, the farewells, the handing over."""

from __future__ import annotations

from clusterrun.coordinator import restart_budget
from clusterrun.coordinator.actions import Finish
from clusterrun.coordinator.farewells import Farewells
from clusterrun.coordinator.termination import Termination
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from clusterrun.coordinator import termination
    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.failures import FailureEvent, RunOutcome
    from clusterrun.coordinator.membership import Membership
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.runtime.machine_events import Now


class Shutdown:
    """One run's last stage; ends in ``Finish``. ``handover`` hears before what ends the job."""

    def __init__(
        self,
        orders: Orders,
        job_id: str,
        roster: Membership,
        ledger: RunStateKeeper,
        say: Callable[[CoordinatorAction], None],
        course: termination.Course,
    ) -> None:
        self.handover = Termination(orders, job_id, ledger, say, course)
        self.parting = Farewells(roster, say, self._leave)
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

    def begin(self, now: Now, end: RunOutcome, mishap: FailureEvent | None, superseded: bool) -> None:
        """No rank lives anywhere, and this is how it ended."""
        self._superseded = superseded
        told = self._ledger.has_just_said(end.reason)
        self._say(Note(end.state.value if told else f"{end.state.value}: {end.reason}"))
        ruled = end
        if not superseded:
            affordable = restart_budget.restarts_used(self._ledger.attempts) < self._most
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
