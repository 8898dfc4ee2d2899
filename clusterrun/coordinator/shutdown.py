"""End a run, or its part in this job: last record, dismissal of agents, launcher, requeue; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import EndLauncher, Finish
from clusterrun.coordinator.restart_policy import RestartPolicy
from clusterrun.coordinator.run_part import RunOver, RunPart, Shared
from clusterrun.coordinator.termination import Termination
from clusterrun.model.states import State
from clusterrun.runtime.machine_events import Now, earliest

# Agents and launcher get this long to end by themselves, and the launcher again after the order to end.
PART_SECONDS = 5.0


class Shutdown(RunPart):
    """One run's last stage. ``Finish`` follows when all agents have left, within twice ``PART_SECONDS``.

    ``termination`` decides whether another job continues the run, and hands the run over.
    """

    def __init__(self, shared: Shared, termination: Termination, restart: RestartPolicy) -> None:
        super().__init__(shared)
        self._termination, self._restart = termination, restart
        self._begun = self._forced = False
        self._due_at: float | None = None
        self._code = 0

    def wakes_at(self) -> float | None:
        return earliest(self._due_at, self._termination.requeue.due_at)

    def begin(self, now: Now, over: RunOver) -> None:
        """Write how the run ended, and dismiss all agents. No rank lives anywhere.

        Agents that never joined, or fell silent, are ended with the launcher.
        """
        ruled = end = over.end
        is_noted = self._state_keeper.has_just_said(end.reason)
        self._note(end.state.value if is_noted else f"{end.state.value}: {end.reason}")
        if not self._restart.superseded:
            ruled = self._termination.rule(end, affordable=self._restart.left > 0)
            failure = over.failure_event.failure if over.failure_event else None
            is_requeued = ruled.state is State.PENDING and end.state is State.CANCELLED
            outcome = "REQUEUED" if is_requeued else end.state
            self._state_keeper.close(now, outcome, failure, over.decision)
            self._actions.append(self._state_keeper.end(now, ruled))
        if ruled is not end:
            self._note(f"{ruled.state.value}: {ruled.reason}")
        self._begun, self._code = True, ruled.exit_code
        self._due_at = now.steady + PART_SECONDS
        self._dismiss(self._membership.linked())
        if not self._membership.complete or any(member.silent for member in self._membership.taken()):
            self._force(now)
        self.check(now)

    def check(self, now: Now) -> None:
        remaining = self._membership.launcher_lives or (self._membership.linked() and not self._forced)
        if self._begun and not remaining:
            self._finish(now)

    def tick(self, now: Now) -> None:
        self._termination.requeue.tick(now)
        if self._due_at is None or now.steady < self._due_at:
            return
        if self._membership.launcher_lives and not self._forced:
            self._force(now)
        else:
            self._finish(now)

    def _force(self, now: Now) -> None:
        self._forced = True
        self._due_at = now.steady + PART_SECONDS
        if self._membership.launcher_lives:
            self._actions.append(EndLauncher())

    def _finish(self, now: Now) -> None:
        self._begun = False
        self._due_at = None
        # The waiting job may be the very job that took the run over.
        if self._restart.superseded:
            self._actions.append(Finish(self._code))
        else:
            self._termination.requeue.leave(now, self._code)
