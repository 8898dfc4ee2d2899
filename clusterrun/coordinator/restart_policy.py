"""Decide whether another attempt or the end of the run follows a failed attempt; pure.

Budgets, pauses and progress are counted from the record, so they hold over coordinators, requeues and chains.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import ReadProgress
from clusterrun.coordinator.events import Progressed
from clusterrun.coordinator.failure_rules import FailureConsequence, FailureEvidence, FailureJudgement, judge
from clusterrun.coordinator.failures import FailureEvent, FailureKind, RunOutcome
from clusterrun.coordinator.lost_nodes import LostNodes
from clusterrun.coordinator.run_part import AttemptOver, NextAttempt, Outcome, RunOver, RunPart, Shared
from clusterrun.coordinator.termination import Termination
from clusterrun.model import contract
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import Attempt
from clusterrun.model.states import Phase, State
from clusterrun.runtime.machine_events import Now
from clusterrun.slurm_text.requeue_exit import lists

# Wait this long for the progress of the ranks. Then decide without it.
READ_SECONDS = 5.0
# A request to end that comes this soon after the first failure counts as its cause.
CAUSE_SECONDS = 2.0
# Causes of attempts that ``max_restarts`` pays for.
CHARGED = ("failure", "node", "hang", "coordinator")
LONGEST_PAUSE = 60.0
FREE_PORT_RETRIES, FREE_OVERLOAD_RETRIES = 3, 3
# Restarts that are not charged to ``max_restarts``: the cause of the next attempt, how many a run has, and
# the reason in words. A failure of such a kind does not make its node suspect.
FREE_RESTARTS = {
    FailureKind.COLLISION: ("port", FREE_PORT_RETRIES, "with another port"),
    FailureKind.OVERLOAD: ("overload", FREE_OVERLOAD_RETRIES, "once more, after an overload"),
}

COMPLETED = RunOutcome(State.COMPLETED, "every rank exited 0", 0)
SUPERSEDED = RunOutcome(State.FAILED, "another coordinator took the run over", 1)
_CAUSES = {FailureKind.NODE: "node", FailureKind.OVERLOAD: "node", FailureKind.HANG: "hang"}
_NOT_OF_RANKS = (FailureKind.NODE, FailureKind.OVERLOAD, FailureKind.LAUNCHER)
_DAY = 86400
_NOWHERE = (-1, -1)


@frozen
class RestartDecision:
    """The decision after an attempt: another attempt or the end of the run."""

    restart_reason: str  # why another attempt is made; empty: the run ends
    outcome: RunOutcome  # how the run ends if no other attempt is made
    failure_event: FailureEvent | None = None
    cause: str = ""  # of the next attempt, as in ``status --json``
    pause: float = 0.0  # seconds until the next attempt
    decision: str = ""  # the rule that decided, as in ``status --json``
    judgement: FailureJudgement | None = None  # about the error of the rank


class RestartPolicy(RunPart):
    """Decides what follows an attempt. A call returns ``NextAttempt`` or ``RunOver`` when it is decided.

    The decision depends on the progress of the ranks, so that is read first.
    """

    def __init__(self, shared: Shared, lost_nodes: LostNodes, termination: Termination) -> None:
        super().__init__(shared)
        self.requested_end: RunOutcome | None = None  # by the first request
        self.superseded = False
        self.trained = False  # ranks have run before, so a failed start is not a wrong command
        self.why = self.cause = ""  # of the next attempt
        self._lost_nodes, self._termination = lost_nodes, termination
        self._requested_first = False
        self.judged: AttemptOver | None = None  # an attempt whose consequence is not decided yet
        self._progress: Progressed | None = None
        self._read_by: float | None = None
        self._pause_until: float | None = None

    def wakes_at(self) -> float | None:
        return self._pause_until if self._read_by is None else self._read_by

    def tick(self, now: Now) -> Outcome | None:
        if self._read_by is not None and now.steady >= self._read_by:
            return self._rule(now)
        if self._pause_until is not None and now.steady >= self._pause_until:
            self._pause_until = None
            return NextAttempt()
        return self.decided(now)

    # --- requests to end ---

    def ask(self, wish: RunOutcome, since_failure_event: float | None) -> bool:
        """Record a request to end the run. Return False if there was an earlier request.

        ``since_failure_event``: seconds since the first failure of this attempt; None if there is none.
        """
        if self.requested_end is not None:
            return False
        self.requested_end = wish
        self._requested_first = since_failure_event is None or since_failure_event <= CAUSE_SECONDS
        return True

    @property
    def ranks_ended_for(self) -> str:
        """Return the reason for which ranks are ended; empty if it is their own failure."""
        if self.superseded:
            return SUPERSEDED.reason
        return self.requested_end.reason if self.requested_end is not None and self._requested_first else ""

    # --- decisions ---

    def used_up(self) -> RunOutcome | None:
        """Return the end of the run if its budget was used up before this coordinator began, else None."""
        newest, used = self._state_keeper.state.attempts[-1], restarts_used(self._state_keeper.state.attempts)
        if newest.cause not in CHARGED or used <= self._orders.max_restarts:
            return None
        if newest.cause == "node" and not self._orders.survival.requeue:
            return None  # Slurm itself requeued the job
        state = State.NODE_FAIL if newest.cause == "node" else State.FAILED
        loss = f"the {newest.cause} of the last attempt was lost"
        return RunOutcome(state, f"{loss}; --max-restarts is {self._orders.max_restarts}", 1)

    @property
    def left(self) -> int:
        return max(0, self._orders.max_restarts - restarts_used(self._state_keeper.state.attempts))

    def over(self, now: Now, outcome: AttemptOver) -> None:
        self.judged = outcome
        self._read_by = now.steady + READ_SECONDS
        self._actions.append(ReadProgress(outcome.epoch))

    def progressed(self, now: Now, event: Progressed) -> Outcome | None:
        self._state_keeper.progressed(event.step, event.checkpoint)
        self._progress = event
        return None if self._read_by is None else self._rule(now)

    def end(self) -> None:
        self._read_by = self._pause_until = None

    def may_follow(self, failure_event: FailureEvent) -> bool:
        return bool(self._before_ranks(failure_event).restart_reason)

    def on_failure_before_ranks(self, now: Now, failure_event: FailureEvent) -> Outcome | None:
        if self._termination.undecided:
            return None  # no rank lives; the signal may end the run, and may be the cause
        self._blame(failure_event)
        return self._follow(now, self._before_ranks(failure_event))

    def decided(self, now: Now) -> Outcome | None:
        """Judge the attempt that waited for the meaning of a signal, if there is one."""
        return self._rule(now) if self.judged is not None and self._read_by is None else None

    def _rule(self, now: Now) -> Outcome | None:
        self._read_by = None
        if self.judged is None or self._termination.holds_end(self.requested_end is not None):
            return None
        over, self.judged = self.judged, None
        for name, why in over.stuck_on:
            self._lost_nodes.leave_out(name, why)
        if over.first and over.failed_at is not None and self._state_keeper.stood_still:
            failure = self._state_keeper.explained(over.first.failure, over.failed_at)
            over = replace(over, first=replace(over.first, failure=failure))
        if over.first and over.first.out_of_reach and self._lives(over.first):
            over = replace(over, first=failures.of_connection(over.first, self._state_keeper.state.host))
        decision = self._after_ranks(over)
        if self._termination.shutdown and decision.outcome not in (SUPERSEDED, self.requested_end):
            # Attribute the decision to the announced end of the job unless the work is complete.
            progress = self._progress
            is_stopping = bool(progress and progress.stopping)
            has_reported = (
                progress is not None
                and progress.epoch == over.epoch
                and (progress.step >= 0 or progress.checkpoint >= 0 or is_stopping)
            )
            if not over.completed or self._termination.makes_room(has_reported, is_stopping):
                decision = RestartDecision("", self._termination.wish(), decision.failure_event)
        has_completed = decision.outcome is COMPLETED and not self._termination.shutdown
        if has_completed and self._termination.was_preempted:
            self._state_keeper.warn(
                "the ranks ended after the notice of a preemption, perhaps before their work was complete:"
                " --requeue continues such a run"
            )
        if over.saving and not decision.restart_reason:
            decision = replace(decision, outcome=killed_after_term(decision.outcome, over))
        if decision.failure_event:
            self._blame(decision.failure_event, decision.judgement)
        return self._follow(now, decision)

    def _lives(self, failure_event: FailureEvent) -> bool:
        """Return whether an agent on the lost node reported that it lives and has lost its coordinator."""
        lost, progress = failure_event.failure, self._progress
        return progress is not None and progress.orphan == lost.node and progress.orphan_at > lost.at

    def _after_ranks(self, over: AttemptOver) -> RestartDecision:
        self.trained = self.trained or over.all_started
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if over.completed:
            return RestartDecision("", COMPLETED)
        failure_event = over.first
        if self.requested_end is not None and (self._requested_first or failure_event is None):
            return RestartDecision("", self.requested_end)
        assert failure_event is not None, "an attempt ended without a recorded cause"
        decision = self._decision(failure_event, end_with(failure_event, over.stuck))
        if self.requested_end is not None and (decision.restart_reason or failure_event.ended_by_request):
            return RestartDecision("", self.requested_end, failure_event)
        # The wait for a lost node was pause enough.
        return replace(decision, pause=0.0) if failure_event.kind is FailureKind.NODE else decision

    def _before_ranks(self, failure_event: FailureEvent) -> RestartDecision:
        if self.superseded:
            return RestartDecision("", SUPERSEDED)
        if self.requested_end is not None:
            return RestartDecision("", self.requested_end)
        return self._decision(failure_event, end_with(failure_event))

    def _decision(self, failure_event: FailureEvent, end: RunOutcome) -> RestartDecision:
        *before, newest = self._state_keeper.state.attempts
        closed = (*before, replace(newest, failure=failure_event.failure))
        most, kind = self._orders.max_restarts, failure_event.kind
        sent = self._orders.survival.signal
        requeue_exit = self._orders.survival.requeue_exit
        if sent and failure_event.failure.code in (-sent, 128 + sent):
            reason = f"{end.reason}, which --sbatch signal has Slurm send: a rank needs a handler for it"
            end = replace(end, reason=reason)
        elif (
            kind in (FailureKind.RANK, FailureKind.MEMORY)
            and requeue_exit
            and lists(requeue_exit, end.exit_code)
        ):
            reason = f"{end.reason}, for which Slurm queues a job here again (RequeueExit): --requeue"
            end = replace(end, reason=f"{reason} starts such a run again")
        if kind is FailureKind.START and not self.trained:
            return RestartDecision("", end, failure_event)
        if not self._lost_nodes.enough_nodes:
            return RestartDecision("", end, failure_event, decision="too-few" if most else "")
        free, most_free, why = FREE_RESTARTS.get(kind, ("", 0, ""))
        if sum(attempt.cause == free for attempt in closed) < most_free:
            return RestartDecision(why, end, failure_event, free, decision=free)
        used = restarts_used(closed)
        # Failures not caused by ranks do not count as lack of progress.
        judged = 0 if kind in _NOT_OF_RANKS else self._orders.survival.no_progress
        no_progress = no_progress_reason(closed, judged)
        if no_progress or used >= most:
            end = replace(end, reason=no_progress) if no_progress and most else end
            word = "no-progress" if no_progress else "budget" if most else ""
            return RestartDecision("", end, failure_event, decision=word)
        judgement = judge(FailureEvidence(failure_event, closed, _since_progress(closed)))
        reason, cause = f"restart {used + 1} of {most}", _CAUSES.get(kind, "failure")
        word = judgement.word if judgement else cause
        if judgement and judgement.consequence is FailureConsequence.END:
            if self._orders.survival.no_progress:
                reason = (
                    f"{end.reason}; not restarted: {judgement.reason} (--no-progress 0 restarts it anyway)"
                )
                return RestartDecision("", replace(end, reason=reason), failure_event, decision=word)
            judgement, word = None, cause
        return RestartDecision(reason, end, failure_event, cause, pause(used), word, judgement)

    def _blame(self, failure_event: FailureEvent, judgement: FailureJudgement | None = None) -> None:
        """Have the node of the failure checked again, or exclude it if its hardware failed."""
        if failure_event.kind in (*FREE_RESTARTS, FailureKind.MEMORY):
            return
        node, consequence = failure_event.failure.node, judgement.consequence if judgement else None
        if (
            judgement
            and consequence is FailureConsequence.SWAP
            and self._lost_nodes.swap(node, judgement.reason)
        ):
            self._note(f"{node} is left out: {judgement.reason}")
            return
        network = failure_event.kind is FailureKind.HANG or consequence is FailureConsequence.CHECK_LINKS
        network = network or (failure_event.failure.rank < 0 and failure_event.failure.peer != "")
        self._lost_nodes.blame(node, network)

    def _follow(self, now: Now, decision: RestartDecision) -> Outcome | None:
        if not decision.restart_reason or decision.failure_event is None:
            return RunOver(decision.outcome, decision.failure_event, decision.decision)
        failure = decision.failure_event.failure
        self._state_keeper.close(now, decision.outcome.state, failure, decision.decision)
        why = failure.why + (f": {decision.judgement.reason}" if decision.judgement else "")
        self.cause, self.why = decision.cause, f"{decision.restart_reason}: {why}"
        self._note(decision.restart_reason if self._state_keeper.has_just_said(why) else self.why)
        if not decision.pause:
            self._state_keeper.says(Phase.RESTARTING, self.why)
            return NextAttempt()
        self._pause_until = now.steady + decision.pause
        minutes, seconds = divmod(int(now.wall + decision.pause) % _DAY, 60)
        clock_time = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d} UTC"
        self._state_keeper.says(Phase.RESTARTING, f"{self.why}; not before {clock_time}")
        return None


def killed_after_term(end: RunOutcome, over: AttemptOver) -> RunOutcome:
    """Return ``end`` with the ranks that handled TERM and were killed.

    After a failure they may have hung in a collective instead of saving.
    """
    from clusterrun.diagnosis.verdict import ranks_in_words  # at the end of an attempt, not before

    were = "was" if len(over.saving) == 1 else "were"
    message = f"{ranks_in_words(over.saving)} handled SIGTERM and {were} killed after {over.grace:g} s"
    if end.state in (State.CANCELLED, State.TIMEOUT, State.PREEMPTED):
        message = f"{message}, {contract.PERHAPS_SAVING}"
    return replace(end, reason=f"{end.reason}; {message}")


def end_with(failure_event: FailureEvent, stuck: Sequence[str] = ()) -> RunOutcome:
    """Return the end of a run that ``failure_event`` caused; ``stuck`` are processes that cannot be killed.

    The exit code is the rank's own code, 128 + n for signal n, and 1 if no rank failed.
    """
    unkilled = f"; still there, not to be killed: {', '.join(stuck)}" if stuck else ""
    is_loss = failure_event.kind in (FailureKind.NODE, FailureKind.OVERLOAD)
    state = State.NODE_FAIL if is_loss else State.FAILED
    state = State.OUT_OF_MEMORY if failure_event.kind is FailureKind.MEMORY else state
    code = failure_event.failure.code
    return RunOutcome(state, failure_event.failure.why + unkilled, 128 - code if code < 0 else code or 1)


def restarts_used(attempts: Sequence[Attempt]) -> int:
    """Return the number of charged restarts since an attempt last got further than all before it."""
    return sum(attempt.cause in CHARGED for attempt in _since_progress(attempts))


def pause(used: int) -> float:
    """Return the seconds to wait before a restart after ``used`` vain ones: 0, 2, 4, 8 … at most 60."""
    # 2.0**used overflows after 1,023 restarts.
    return min(2.0 ** min(used, 16), LONGEST_PAUSE) if used else 0.0


def no_progress_reason(attempts: Sequence[Attempt], most: int) -> str:
    """Return a message if the last ``most`` attempts all followed a failure and got no further, else ''.

    A run that never reports progress is not judged, nor is any run if ``most`` is 0.
    """
    if not most or all((attempt.step, attempt.checkpoint) == _NOWHERE for attempt in attempts):
        return ""
    fruitless = _since_progress(attempts)[-most:]
    if len(fruitless) < most or any(attempt.cause not in CHARGED for attempt in fruitless):
        return ""
    failure = fruitless[-1].failure
    why = f", {failure.why}" if failure else ""
    return f"no progress over {most} attempts: {_ends([attempt.step for attempt in fruitless])}{why}"


def _since_progress(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts after the last one that reported a higher step or checkpoint than all before."""
    step, checkpoint = _NOWHERE
    after = 0
    for number, attempt in enumerate(attempts, 1):
        if attempt.step > step or attempt.checkpoint > checkpoint:
            after = number
            step, checkpoint = max(step, attempt.step), max(checkpoint, attempt.checkpoint)
    return attempts[after:]


def _ends(steps: Sequence[int]) -> str:
    if max(steps) < 0:
        return "none of them got to a step"
    same = min(steps) == max(steps)
    return f"each ended at step {max(steps)}" if same else f"none got beyond step {max(steps)}"
