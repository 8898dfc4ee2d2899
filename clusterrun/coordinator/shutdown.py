"""The end of a run, or of its part in this job: last record, farewells, the launcher, requeue; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import EndLauncher, Finish
from clusterrun.coordinator.restart_policy import RestartPolicy
from clusterrun.coordinator.run_part import RunOver, RunPart, Shared
from clusterrun.coordinator.termination import Termination
from clusterrun.runtime.machine_events import Now, earliest

PART_SECONDS = 5.0
"""For the agents to leave and the launcher to end by themselves, and again for its end by force."""


class Shutdown(RunPart):
    """One run's last stage: once all have left, within twice ``PART_SECONDS``, ``Finish`` follows.

    ``termination`` says whether another job goes on, and hands the run over to it.
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
        """No rank lives anywhere: write how it ended, and say farewell to everyone.

        Who never joined, or fell silent, is ended with the launcher.
        """
        ruled = end = over.end
        told = self._state_keeper.has_just_said(end.reason)
        self._note(end.state.value if told else f"{end.state.value}: {end.reason}")
        if not self._restart.superseded:
            ruled = self._termination.rule(end, affordable=self._restart.left > 0)
            failure = over.failure_event.failure if over.failure_event else None
            self._state_keeper.close(now, end.state, failure)
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
        left = self._membership.launcher_lives or (self._membership.linked() and not self._forced)
        if self._begun and not left:
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
        # What waits in the queue may be the very job that took the run over.
        if self._restart.superseded:
            self._actions.append(Finish(self._code))
        else:
            self._termination.requeue.leave(now, self._code)
