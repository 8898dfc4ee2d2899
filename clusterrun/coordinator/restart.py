"""From the end of one attempt to the claim of the next, or to the end of the run; pure.

What decides is how far the ranks had come, so that is read first.
"""

from __future__ import annotations

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import ReadProgress
from clusterrun.coordinator.failures import FailureKind
from clusterrun.coordinator.outcomes import AttemptOver, NextAttempt, RunOver
from clusterrun.coordinator.restart_policy import SUPERSEDED, RestartDecision
from clusterrun.model.frozen import replace
from clusterrun.model.states import Phase
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.events import Progressed
    from clusterrun.coordinator.failures import FailureEvent
    from clusterrun.coordinator.lost_nodes import LostNodes
    from clusterrun.coordinator.restart_policy import RestartPolicy
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.coordinator.termination import Termination
    from clusterrun.runtime.machine_events import Now

READ_SECONDS = 5.0
"""For the answer how far ranks have come; then it goes on without."""
_DAY = 86400


class Restart:
    """One run's decisions between attempts; a call returns ``NextAttempt`` or ``RunOver`` once one is made.

    ``why`` and ``cause`` are those of the next attempt.
    """

    def __init__(
        self,
        judge: RestartPolicy,
        state_keeper: RunStateKeeper,
        lost_nodes: LostNodes,
        termination: Termination,
        actions: list[CoordinatorAction],
    ) -> None:
        self.why = self.cause = ""
        self._judge, self._state_keeper, self._lost_nodes = judge, state_keeper, lost_nodes
        self._termination, self._actions = termination, actions
        self._over: AttemptOver | None = None
        self._progress: Progressed | None = None
        self._read_by: float | None = None
        self._pause_until: float | None = None

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        return self._pause_until if self._read_by is None else self._read_by

    def tick(self, now: Now) -> NextAttempt | RunOver | None:
        """An answer may not come; a pause may be over; what a signal meant may be known."""
        if self._read_by is not None and now.steady >= self._read_by:
            return self._rule(now)
        if self._pause_until is not None and now.steady >= self._pause_until:
            self._pause_until = None
            return NextAttempt()
        return self.decided(now)

    @property
    def weighs(self) -> bool:
        """The end of an attempt is being judged."""
        return self._over is not None

    @property
    def failed_at(self) -> float | None:
        """When the attempt that is judged met its first failure (steady clock)."""
        return self._over.failed_at if self._over else None

    def over(self, now: Now, outcome: AttemptOver) -> None:
        """An attempt is over: how far had it come?"""
        self._over = outcome
        self._read_by = now.steady + READ_SECONDS
        self._actions.append(ReadProgress(outcome.epoch))

    def progressed(self, now: Now, event: Progressed) -> NextAttempt | RunOver | None:
        """How far ranks of the newest attempt have come."""
        self._state_keeper.progressed(event.step, event.checkpoint)
        self._progress = event
        return None if self._read_by is None else self._rule(now)

    def end(self) -> None:
        """The run ends."""
        self._read_by = self._pause_until = None

    def may_follow(self, failure_event: FailureEvent) -> bool:
        """Another attempt may follow this failure that came before any rank."""
        end = failures.of_failure_event(failure_event)
        room = self._lost_nodes.room
        return bool(
            self._judge.rule_before(failure_event, end, self._state_keeper.state.attempts, room).again
        )

    def failure_event(self, now: Now, failure_event: FailureEvent) -> NextAttempt | RunOver | None:
        """It came to no rank."""
        if self._termination.undecided:
            return None  # no rank lives, so whatever the signal means ends the run, and may be the cause
        self._blame(failure_event)
        end = failures.of_failure_event(failure_event)
        ruling = self._judge.rule_before(
            failure_event, end, self._state_keeper.state.attempts, self._lost_nodes.room
        )
        return self._follow(now, ruling)

    def _rule(self, now: Now) -> NextAttempt | RunOver | None:
        self._read_by = None
        if self._termination.undecided:
            return None
        over, self._over = self._over, None
        if over is None:
            return None
        for name, why in over.stuck_on:
            self._lost_nodes.leave_out(name, why)
        if over.first is not None and over.failed_at is not None:
            failure = self._state_keeper.explained(over.first.failure, over.failed_at)
            over = replace(over, first=replace(over.first, failure=failure))
        ruling = self._judge.rule(over, self._state_keeper.state.attempts, self._lost_nodes.room)
        ruling = self._of_shutdown(ruling, over) if self._termination.shutdown else ruling
        if ruling.failure_event:
            self._blame(ruling.failure_event)
        return self._follow(now, ruling)

    def decided(self, now: Now) -> NextAttempt | RunOver | None:
        """What a signal meant may be known: an attempt that waited for it is judged."""
        return self._rule(now) if self._over is not None and self._read_by is None else None

    def _of_shutdown(self, ruling: RestartDecision, over: AttemptOver) -> RestartDecision:
        """Ranks that knew that the job would end have ended for that, unless their work is done."""
        if ruling.verdict in (SUPERSEDED, self._judge.asked):
            return ruling
        said = self._progress
        own = said is not None and said.epoch == over.epoch
        reported = own and said is not None and (said.step >= 0 or said.checkpoint >= 0 or said.stopping)
        if over.completed and not self._termination.makes_room(reported, bool(said and said.stopping)):
            return ruling
        return RestartDecision("", self._termination.wish(), ruling.failure_event)

    def _blame(self, failure_event: FailureEvent) -> None:
        if failure_event.kind is not FailureKind.COLLISION:
            self._lost_nodes.blame(failure_event.failure.node, network=failure_event.kind is FailureKind.HANG)

    def _follow(self, now: Now, ruling: RestartDecision) -> NextAttempt | RunOver | None:
        if not ruling.again or ruling.failure_event is None:
            return RunOver(ruling.verdict, ruling.failure_event)
        self._state_keeper.close(now, ruling.verdict.state, ruling.failure_event.failure)
        why = ruling.failure_event.failure.why
        self.cause, self.why = ruling.cause, f"{ruling.again}: {why}"
        self._actions.append(Note(ruling.again if self._state_keeper.has_just_said(why) else self.why))
        if not ruling.pause:
            self._state_keeper.says(Phase.RESTARTING, self.why)
            return NextAttempt()
        self._pause_until = now.steady + ruling.pause
        self._state_keeper.says(Phase.RESTARTING, f"{self.why}; not before {_clock(now.wall + ruling.pause)}")
        return None


def _clock(wall: float) -> str:
    """A time of the day, as it is the same everywhere."""
    minutes, seconds = divmod(int(wall) % _DAY, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d} UTC"
