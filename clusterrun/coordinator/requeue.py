"""Decide which job continues the run when this job ends, and within which budget; pure.

``itself``: the scheduler starts this job again by itself. ``requeue``: it does so at our request.
``chain``: another job waits already and starts when this job has ended.
"""

from __future__ import annotations

from clusterrun.coordinator.actions import DropNext, ExcludeNext, Finish, QueueNext, Requeue
from clusterrun.coordinator.events import HandedOver, NextQueued
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.run_part import RunPart, Shared
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.states import State
from clusterrun.runtime.machine_events import Now
from clusterrun.slurm_text.controller_away import ControllerAway, is_away

# Wait this long at the end for the scheduler to confirm that a job is queued or requeued.
PARTING_SECONDS = 150.0
TIME_LIMIT, PREEMPTION = "time-limit", "preemption"
STATES = {TIME_LIMIT: State.TIMEOUT, PREEMPTION: State.PREEMPTED}
_CAUSES = {State.TIMEOUT: TIME_LIMIT, State.PREEMPTED: PREEMPTION, State.NODE_FAIL: "node"}
_ENDS = {TIME_LIMIT: "time limits were reached", PREEMPTION: "preemptions"}
_OPTIONS = {TIME_LIMIT: "--max-time-limits", PREEMPTION: "--max-preemptions"}


class RequeuePolicy(RunPart):
    """One job's successor. ``survival.requeue`` is empty if no job may continue the run."""

    def __init__(self, shared: Shared, survival: Survival) -> None:
        super().__init__(shared)
        self._survival = survival
        self._next = ""  # the waiting job that continues the run; '' if none waits
        self._is_queueing = False  # such a job is being queued
        self._is_decided = False  # `rule` was called
        self._continues_by = ""  # "itself", "requeue" or "chain"; '' if no job continues the run
        self._end: RunOutcome | None = None  # of this job's part, if another job continues the run
        self._requested_end: RunOutcome | None = None  # by the owner
        self._away = ControllerAway()
        self._again_at: float | None = None  # next try while the controller is away; steady clock
        self._overdue_at: float | None = None  # end of the wait for the scheduler's confirmation

    @property
    def due_at(self) -> float | None:
        return self._overdue_at if self._again_at is None else self._again_at

    def _used(self, cause: str) -> int:
        return sum(attempt.cause == cause for attempt in self._state_keeper.state.attempts)

    def _most(self, cause: str) -> int:
        return self._survival.max_time_limits if cause == TIME_LIMIT else self._survival.max_preemptions

    def begin(self) -> RunOutcome | None:
        """Return the end of the run if this job exceeds a budget, else None."""
        if not self._survival.requeue:
            return None
        for cause, state in STATES.items():
            if self._used(cause) > self._most(cause):
                reason = f"{self._used(cause)} {_ENDS[cause]}; {_OPTIONS[cause]} is {self._most(cause)}"
                self._survival = replace(self._survival, requeue="")
                return RunOutcome(state, reason, 1)
        return None

    @property
    def lacks(self) -> bool:
        """Return whether a job should wait in the queue, but none does or is being queued."""
        waits = self._next or self._is_queueing or self._is_decided or self._requested_end
        return self._survival.requeue == "chain" and not waits

    def queue(self) -> None:
        """Queue the job that continues the run, before this job may be lost."""
        if self.lacks:
            self._is_queueing = True
            self._actions.append(QueueNext(self._state_keeper.state.excluded))

    def drop(self) -> None:
        """Cancel the waiting job."""
        if self._next:
            self._next = ""
            self._actions.append(DropNext())

    def cancel(self, now: Now, end: RunOutcome) -> None:
        """Handle the owner's request to end the run. Take back a continuation that was recorded already."""
        self.drop()
        self._requested_end = self._requested_end or end
        if self._continues_by in ("", "itself"):
            return
        if self._again_at is not None:
            self._take_back(now, self._requested_end)
        elif self._overdue_at is None:
            self._continues_by = ""
            self._actions.append(self._state_keeper.end(now, self._requested_end))

    def _take_back(self, now: Now, end: RunOutcome) -> None:
        """Finish with ``end``: all agents have left, and no job continues the run."""
        self._again_at = self._overdue_at = None
        self.drop()
        self._actions.append(self._state_keeper.end(now, end))
        self._actions.append(Finish(end.exit_code))

    def rule(self, end: RunOutcome, requeued: bool, again: bool, affordable: bool) -> RunOutcome:
        """Return ``end``, or PENDING if another job continues the run.

        ``requeued``: the scheduler starts this job again by itself; ``again``: it does so for the reason
        of ``end``. ``affordable``: the budget allows another attempt after the failure.
        """
        self._is_decided = True
        cause = _CAUSES.get(end.state, "")
        if requeued and (again or cause):
            self._continues_by = "itself"
        elif not self._survival.requeue or not cause or not (affordable or cause in _OPTIONS):
            return end
        elif cause in _OPTIONS and self._used(cause) >= self._most(cause):
            return replace(end, reason=f"{end.reason}; {_OPTIONS[cause]} {self._most(cause)} is used up")
        elif self._requested_end is not None:
            return self._requested_end
        else:
            self._continues_by = self._survival.requeue
        self._end = end
        waits = self._next and self._continues_by == "chain"
        where = f"in job {self._next}" if waits else "when Slurm starts it again"
        return RunOutcome(State.PENDING, f"{end.reason}{contract.GOES_ON}{where}", 0)

    def leave(self, now: Now, code: int) -> None:
        """Hand the run over and exit with ``code``. Only this process is left."""
        excluded = self._state_keeper.state.excluded
        if self._continues_by == "requeue" or (self._continues_by == "chain" and not self._next):
            self._hand_over(now)
        else:
            if self._continues_by != "chain":
                self.drop()
            elif excluded:
                self._actions.append(ExcludeNext(excluded))
            taken_back = self._end is not None and not self._continues_by
            if self._requested_end and taken_back:
                code = self._requested_end.exit_code
            self._actions.append(Finish(code))

    def _hand_over(self, now: Now) -> None:
        """Ask the scheduler for the job that continues the run."""
        self._again_at = None
        self._overdue_at = now.steady + PARTING_SECONDS
        if self._continues_by == "requeue":
            self._actions.append(Requeue(self._state_keeper.state.excluded))
        elif not self._is_queueing:
            self._actions.append(QueueNext(self._state_keeper.state.excluded))

    def queued(self, now: Now, event: NextQueued) -> None:
        self._is_queueing = False
        self._next = event.job_id
        if self._overdue_at is not None:
            self._end_handover(now, "" if event.job_id else event.why)
        elif self._requested_end is not None or (self._is_decided and self._continues_by != "chain"):
            self.drop()
        elif not event.job_id:
            self._state_keeper.warn(f"no job could be queued to continue the run: {event.why}")

    def handed_over(self, now: Now, event: HandedOver) -> None:
        if self._overdue_at is None:
            return
        another = self._survival.resubmit and self._requested_end is None
        if event.why and another and not is_away((event.why,)):
            self._note(f"the job could not be requeued ({event.why}): another one is queued")
            self._continues_by = "chain"
            self._hand_over(now)
        else:
            self._end_handover(now, event.why)

    def tick(self, now: Now) -> None:
        if self._again_at is not None and now.steady >= self._again_at:
            self._hand_over(now)
        elif self._overdue_at is not None and now.steady >= self._overdue_at:
            self._end_handover(now, "the scheduler did not answer")

    def _end_handover(self, now: Now, why: str) -> None:
        """Finish if a job continues the run, or try again later. ``why``: why none does; '' if one does."""
        self._overdue_at = None
        if self._requested_end is not None and (why or self._continues_by == "chain"):
            self._take_back(now, self._requested_end)
            return
        if not why or self._end is None:
            self._actions.append(Finish(0))
            return
        # An unreachable controller cannot end this job, so this process may wait for it.
        self._again_at = self._away.next_at(now.steady, (why,))
        if self._again_at is not None:
            return
        end = replace(self._end, reason=f"{self._end.reason}; it could not go on: {why}")
        self._note(end.reason)
        self._actions.append(self._state_keeper.end(now, end))
        self._actions.append(Finish(end.exit_code))
