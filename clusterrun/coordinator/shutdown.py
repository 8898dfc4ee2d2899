"""The end of a run, or of its part in this job: last record, farewells, requeue; pure."""

from __future__ import annotations

from clusterrun.coordinator import restart_budget
from clusterrun.coordinator.actions import Finish
from clusterrun.coordinator.farewells import Farewells
from clusterrun.coordinator.termination import Termination
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator import termination
    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.failures import FailureEvent, RunOutcome
    from clusterrun.coordinator.membership import Membership
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.runtime.machine_events import Now


class Shutdown:
    """One run's last stage; ends in ``Finish``. ``termination`` hears before what ends the job."""

    def __init__(
        self,
        orders: Orders,
        job_id: str,
        membership: Membership,
        state_keeper: RunStateKeeper,
        actions: list[CoordinatorAction],
        lifecycle: termination.Course,
    ) -> None:
        self.termination = Termination(orders, job_id, state_keeper, actions, lifecycle)
        self.farewells = Farewells(membership, actions, self._leave)
        self._most, self._state_keeper, self._actions = orders.max_restarts, state_keeper, actions
        self._superseded = False

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        times = (self.farewells.due_at, self.termination.wakes_at())
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: Now) -> None:
        """Time is up for those who are left, or for an answer."""
        self.termination.tick(now)
        self.farewells.tick(now)

    def begin(self, now: Now, end: RunOutcome, failure_event: FailureEvent | None, superseded: bool) -> None:
        """No rank lives anywhere, and this is how it ended."""
        self._superseded = superseded
        told = self._state_keeper.has_just_said(end.reason)
        self._actions.append(Note(end.state.value if told else f"{end.state.value}: {end.reason}"))
        ruled = end
        if not superseded:
            affordable = restart_budget.restarts_used(self._state_keeper.attempts) < self._most
            ruled = self.termination.rule(now, end, affordable)
            self._state_keeper.close(now, end.state, failure_event.failure if failure_event else None)
            self._actions.append(self._state_keeper.end(now, ruled))
        if ruled is not end:
            self._actions.append(Note(f"{ruled.state.value}: {ruled.reason}"))
        self.farewells.begin(now, ruled.exit_code)

    def _leave(self, now: Now, code: int) -> None:
        # What waits in the queue may be the very job that took the run over.
        if self._superseded:
            self._actions.append(Finish(code))
        else:
            self.termination.requeue_policy.leave(now, code)
