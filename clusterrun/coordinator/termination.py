"""Handle the end of the job: signals, time limits, preemption; pure.

The scheduler, an administrator or the owner ends a job: at its time limit, for a job of higher priority, or
by request. A signal announces the end. The scheduler gives the reason.

    a notice (USR2), or our own clock    -AskJob-> JobTold -> ranks get the notice, and are ended in time
    a TERM or INT, here or on a node     -AskJob-> JobTold -> the same if time is left, else the end
    a TERM or INT of some agents only    -AskJob-> JobTold -> nothing, if the scheduler ends nothing
    the signal of ``--sbatch signal=…``  -AskJob-> JobTold -> the notice, if the end of the job is near

Agents pass TERM, INT and users' signals on to the ranks that catch them, before the answer arrives. Until
it arrives (or is late) a TERM leaves the run *undecided*: the end of the run must not be decided. A signal
that comes before ranks run is held until they have a handler. The table
of all signals is docs/signals.md.
"""

from __future__ import annotations

import signal

from clusterrun.coordinator.actions import AskJob
from clusterrun.coordinator.attempt import LiveAttempt, have_started
from clusterrun.coordinator.events import JobTold, NextQueued
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.requeue import PREEMPTION, STATES, TIME_LIMIT, RequeuePolicy
from clusterrun.coordinator.run_part import EndAsked, RunPart, Shared
from clusterrun.model import contract
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.states import State
from clusterrun.runtime.machine_events import Now, earliest

# A later answer of the scheduler decides nothing, because the scheduler may kill before it comes.
ANSWER_SECONDS = 3.5
# The scheduler may send its signal up to 60 s early.
EARLY_SECONDS = 90.0
# The first question comes this long after a launch, so that the two do not compete for the processor.
FIRST_LOOK_SECONDS = 5.0
ASK_AGAIN_SECONDS = 60.0
# A TERM that the scheduler does not explain, this shortly before the end of the job, means its time limit.
GRACE_OF_LIMIT_SECONDS = 8.0
# The scheduler rounds times to whole seconds.
DUE_SECONDS = 1.0
# Notices from many nodes within this time count as one notice.
NOTICE_SECONDS = 30.0
# Time from the end of the ranks to the end of the job, to hand the run over to the next job.
HAND_OVER_SECONDS = 20.0
# Time from the notice to TERM if the job is being killed and the run continues. More delays the hand-over.
SUDDEN_SECONDS = 2.0
REQUEUE, CANCELLED, UNKNOWN, BY_HAND = "requeue", "cancelled", "unknown", "signal"
_REASONS = {
    TIME_LIMIT: "the job's time limit was reached",
    PREEMPTION: "preempted: the scheduler needs the nodes for another job",
    BY_HAND: "told by a signal to make room",
    REQUEUE: "the job was put back into the queue",
}


@frozen
class _SignalQuestion:
    """An open question to the scheduler about a signal."""

    wish: RunOutcome | None  # the end that a TERM or INT requests; None: a notice
    at: float  # when the signal came (steady clock)
    number: int  # of the signal
    by_clock: bool = False  # no signal came, but the notice was due
    some: bool = False  # only some agents got it, so it may not be a request to end the run
    interrupts_ranks: bool = False  # an INT that ``scancel -s INT`` sent, which is for the ranks


class Termination(RunPart):
    """One job's end. ``job_id`` is empty if no scheduler keeps the time.

    A call may return a request to end the run. After each call, decisions that waited may be possible.
    ``live`` is the attempt whose ranks may live, None if no rank can.
    """

    def __init__(self, shared: Shared, job_id: str) -> None:
        super().__init__(shared)
        orders = self._orders
        self._survival = orders.survival if job_id else replace(orders.survival, requeue="")
        self._kill_wait, self._job_id = orders.kill_wait, job_id
        self.requeue = RequeuePolicy(shared, self._survival)
        # The newest signal reached only some agents, and the scheduler does not end the job. Only those
        # agents end.
        self.stray = False
        # Signals that came before ranks ran.
        self.held_signals: list[int] = []
        # The ranks were notified of the job's end, and no other attempt begins in this job.
        self.shutdown = False
        # The job's first process was killed. The scheduler ends the job for that reason.
        self.abandoned = False
        self._question: _SignalQuestion | None = None
        self._unanswered = 0
        self._noticed = ""
        self._taken_signals: set[int] = set()
        self._requeued = self._over = False
        self._heard_at: float | None = None
        self._end_at: float | None = None
        self._until: float | None = None
        self._ask_at: float | None = None

    # --- state for other parts ---

    @property
    def undecided(self) -> bool:
        """Return whether a signal's meaning is not known yet. The end of the run must not be decided then."""
        return self._question is not None and self._question.wish is not None

    @property
    def was_preempted(self) -> bool:
        """Return whether the ranks got the notice of a preemption."""
        return self._noticed == PREEMPTION

    def holds_end(self, is_requested: bool) -> bool:
        """Return whether the end of a run waits for the meaning of a signal, after all ranks have ended.

        A signal may be a notice, after which another job goes on. ``is_requested``: the end was requested.
        """
        question = self._question
        may_be_notice = question is not None and not question.by_clock and bool(self._survival.requeue)
        return self.undecided or (may_be_notice and not is_requested)

    def taken(self, number: int, ranks: int) -> None:
        """Record that ``ranks`` ranks caught signal ``number``, which may be a notice."""
        if ranks and (self._question is not None or self.shutdown):
            self._taken_signals.add(number)

    def makes_room(self, reported: bool, stopping: bool) -> bool:
        """Return whether ranks that all exited 0 did so because of the notice, with work left.

        ``reported``: rank 0 reported its progress. Then ``stopping`` is its own answer. This does not hold
        if ranks caught Slurm's TERM or the user's signal, which ``clusterrun.training`` does not handle.
        """
        if self._taken_signals - {contract.NOTICE_SIGNAL}:
            return self.shutdown
        return self.shutdown and (stopping if reported else bool(self._taken_signals))

    def wish(self) -> RunOutcome:
        return RunOutcome(STATES.get(self._noticed, State.PREEMPTED), _REASONS[self._noticed], 1)

    def begin(self, now: Now) -> RunOutcome | None:
        if not self._job_id:
            return None
        self._ask_at = now.steady + FIRST_LOOK_SECONDS
        end = self.requeue.begin()
        if end is None:
            self.requeue.queue()  # at once: this node may be lost before anything else
        return end

    def wakes_at(self) -> float | None:
        late = self._question.at + ANSWER_SECONDS if self._question else None
        return earliest(late, self._until, self._ask_at)

    def tick(self, now: Now, live: LiveAttempt | None) -> EndAsked | None:
        """Carry out what is due. If the call returns a request, call it again: more may be due."""
        late = self._question is not None and now.steady >= self._question.at + ANSWER_SECONDS
        if late and (end := self._decide(now, self._by_the_clock(now), False, live)):
            return end
        if self._until is not None and now.steady >= self._until:
            self._until = None
            return EndAsked(self.wish())
        if self._ask_at is not None and now.steady >= self._ask_at:
            self._ask_at = None
            self.requeue.queue()
            if self._ends_within(now, self._survival.notice + DUE_SECONDS):
                self.noticed(now, live, by_clock=True)
            else:
                self._ask()
        return None

    def _by_the_clock(self, now: Now) -> str:
        """Return the meaning of a signal that the scheduler does not explain."""
        question = self._question
        if question is not None and question.wish is None and question.number == contract.NOTICE_SIGNAL:
            return TIME_LIMIT if self._ends_within(now, self._survival.notice + EARLY_SECONDS) else PREEMPTION
        if self._ends_within(now, GRACE_OF_LIMIT_SECONDS):
            return TIME_LIMIT
        if question is None or question.wish is None or question.some or question.interrupts_ranks:
            return ""
        return "" if self._is_users_notice(now, question) else CANCELLED

    def _is_users_notice(self, now: Now, question: _SignalQuestion) -> bool:
        """Return whether this is the signal that Slurm sends before the time limit at the user's request."""
        is_near = self._ends_within(now, self._survival.notice + EARLY_SECONDS)
        return question.number == self._survival.signal and is_near

    def _ends_within(self, now: Now, seconds: float) -> bool:
        return self._end_at is not None and now.steady >= self._end_at - seconds

    def _ask(self) -> None:
        self._unanswered += 1
        self._actions.append(AskJob())

    def ask_if_halted(self) -> bool:
        """Ask the scheduler for the job's state. Return False if there is no scheduler."""
        if self._job_id:
            self._ask()
        return bool(self._job_id)

    def look_again(self, now: Now) -> None:
        if self._job_id and self._ask_at is not None:
            self._ask_at = min(self._ask_at, now.steady + FIRST_LOOK_SECONDS)

    # --- signals and their meaning ---

    def hold(self, number: int) -> None:
        """Keep a signal that came before ranks ran. They get it when they run."""
        if number not in self.held_signals:
            self.held_signals.append(number)
            name = signal.Signals(number).name
            text = f"{name} came before ranks ran: each rank gets it as soon as it has a handler for it"
            self._note(text)
            self._state_keeper.warn(text)

    def _continue_after(self, now: Now, number: int, live: LiveAttempt | None) -> None:
        """Pass on a signal that ends nothing. Hold it too unless all ranks run."""
        if live is not None:
            live.continue_after(now, number)
        if not have_started(live):
            self.hold(number)

    def noticed(
        self, now: Now, live: LiveAttempt | None, number: int = contract.NOTICE_SIGNAL, by_clock: bool = False
    ) -> None:
        """Handle a notice or the user's own signal. Any other signal has no meaning for the run."""
        if number not in (contract.NOTICE_SIGNAL, self._survival.signal):
            return
        heard_at = None if by_clock else self._heard_at
        fresh = heard_at is None or now.steady - heard_at >= NOTICE_SECONDS
        if self._over or self._question or self._until is not None or not fresh:
            return
        self._heard_at = now.steady
        if self._job_id:
            self._question = _SignalQuestion(None, now.steady, number, by_clock)
            self._ask()
        elif number == contract.NOTICE_SIGNAL:
            self._notify(now, BY_HAND, 0.0, live)

    def terminated(
        self, now: Now, wish: RunOutcome, number: int, some: bool | None = None
    ) -> EndAsked | None:
        """Handle a TERM or INT that this process or an agent got; ``wish`` is the end that it requests.

        ``some``: whether only some of the agents got it; None if this process got it to end the run.
        """
        if self._over:
            return None
        interrupts_ranks = some is not None and number == signal.SIGINT
        if self._question is not None and self.undecided:
            if not interrupts_ranks:
                self._question = replace(self._question, interrupts_ranks=False)
            if self._question.some and not some:
                self._question = replace(self._question, wish=wish, some=False)
            return None
        if not self._job_id:
            return EndAsked(wish)
        self.stray = False
        self._question = _SignalQuestion(
            wish, now.steady, number, some=bool(some), interrupts_ranks=interrupts_ranks
        )
        self._ask()
        return None

    def on_job_answer(self, now: Now, event: JobTold, live: LiveAttempt | None) -> EndAsked | None:
        self._unanswered = max(0, self._unanswered - 1)
        if self._over:
            return None
        if event.end_at is not None:
            self._end_at = now.steady + event.end_at - now.wall
        self._requeued = self._requeued or event.requeued
        if self.undecided and self._unanswered and event.why in ("", UNKNOWN):
            return None  # this may answer a question from before the signal
        why = self._by_the_clock(now) if event.why == UNKNOWN else event.why
        sudden = event.end_at is None and event.why in STATES and not event.in_grace
        end = self._decide(now, why, sudden, live)
        if event.why == UNKNOWN and self._end_at is None:
            self._ask_at = now.steady + ASK_AGAIN_SECONDS
        elif self._survival.requeue and self._end_at is not None and not self._noticed:
            self._ask_at = max(self._end_at - self._survival.notice, now.steady + 1.0)
        return end

    def _decide(self, now: Now, why: str, sudden: bool, live: LiveAttempt | None) -> EndAsked | None:
        """Act on the signal, whose meaning is as certain as it can be.

        ``sudden``: the job is being killed.
        """
        question, self._question = self._question, None
        if question is None:
            return None
        if not why and self._is_users_notice(now, question):
            if question.wish is not None:
                self._continue_after(now, question.number, live)
            is_own = question.number == contract.NOTICE_SIGNAL
            if self._until is not None or not (self._survival.requeue or is_own):
                return None
            if not (is_own or have_started(live) or self._taken_signals):
                return None  # ranks get the held signal, and our own clock gives the notice
            return self._notify(now, TIME_LIMIT, self._seconds_left(now, TIME_LIMIT), live)[1]
        if question.interrupts_ranks and not (why or question.some):
            self._continue_after(now, question.number, live)
            return None
        seconds = self._seconds_left(now, why)
        if sudden:
            seconds = SUDDEN_SECONDS if self._survival.requeue and not self._noticed else 0.0
        early = why == PREEMPTION and seconds > 0
        if question.wish is None:
            is_near = self._ends_within(now, self._survival.notice + EARLY_SECONDS)
            if not why and is_near and self._survival.requeue:  # Slurm sends no other run our notice
                why = TIME_LIMIT if self._ends_within(now, self._survival.notice + DUE_SECONDS) else ""
            elif not why and not question.by_clock and question.number == contract.NOTICE_SIGNAL:
                why = BY_HAND  # the scheduler gives no reason, so a user sent it
            if why in ("", CANCELLED, REQUEUE):  # a TERM follows in these cases
                if not self.shutdown:
                    self._taken_signals.clear()
                return None
            if why == PREEMPTION and not self._survival.signal and live is not None:
                # Slurm sends our notice instead of TERM if PreemptParameters=send_user_signal is set.
                live.signal(signal.SIGTERM)
            return self._notify(now, why, seconds, live)[1]
        if question.some and not why:
            self.stray = True
            return None
        is_notified, ended = self._notify(now, why, seconds, live) if early else (False, None)
        return ended if is_notified or ended else self._end(now, why, question.wish, question.at)

    def _seconds_left(self, now: Now, why: str) -> float:
        """Return the seconds until all ranks get TERM, with time to save and to hand the run over.

        Slurm itself ends the grace time of a preemption, and ranks have ``KillWait`` after it too.
        """
        notice = self._survival.notice
        seconds = notice if self._end_at is None else self._end_at - now.steady
        if why == PREEMPTION:
            return seconds
        hand_over = min(HAND_OVER_SECONDS, notice / 4)
        return seconds - hand_over - min(self._kill_wait, (notice - hand_over) / 2)

    def _notify(
        self, now: Now, why: str, seconds_left: float, live: LiveAttempt | None
    ) -> tuple[bool, EndAsked | None]:
        """Notify the ranks, which may end by themselves until their time is up.

        Return False if none lives.
        """
        self._noticed, self.shutdown = why, bool(self._survival.requeue)
        seconds = max(0.0, seconds_left)
        is_notified = live is not None and live.notice(
            now, why, 0.0 if why == BY_HAND else now.wall + seconds
        )
        if self._survival.requeue and not is_notified:
            return False, EndAsked(self.wish())
        if why == BY_HAND and not have_started(live):
            self.hold(contract.NOTICE_SIGNAL)
        # Slurm sends TERM at the end of a grace time, some seconds late. An earlier TERM costs time to save.
        is_grace = why == PREEMPTION and seconds > SUDDEN_SECONDS
        if self._survival.requeue and why != BY_HAND and not is_grace:
            self._until = now.steady + seconds
        return is_notified, None

    def _end(self, now: Now, why: str, wish: RunOutcome, since: float) -> EndAsked:
        reason = _REASONS.get(why, f"cancelled through the scheduler: {wish.reason}")
        members = enumerate(self._membership.members)
        absent = [self._membership.name_of(node) for node, member in members if member is None]
        if why in (CANCELLED, REQUEUE) and absent:
            reason += f"; no agent had started on {fold(absent)} ({contract.PROLOG_FAILS})"
        elif why == REQUEUE:
            reason += " (scontrol requeue)"
        elif why == PREEMPTION and not (self._survival.requeue or self._requeued):
            reason += "; --requeue continues such a run"
        if why == CANCELLED:
            wish = replace(wish, reason=reason)
            if not self.abandoned:
                self.requeue.cancel(now, wish)
        elif why in _REASONS:
            wish = RunOutcome(STATES.get(why, State.CANCELLED), reason, wish.exit_code)
        return EndAsked(wish, since)

    def queued(self, now: Now, event: NextQueued) -> None:
        self.requeue.queued(now, event)
        if self.requeue.lacks:
            ask_again_at = now.steady + ASK_AGAIN_SECONDS
            self._ask_at = ask_again_at if self._ask_at is None else min(self._ask_at, ask_again_at)

    def rule(self, end: RunOutcome, affordable: bool) -> RunOutcome:
        """Return ``end``, or PENDING if another job continues the run. Signals are ignored from now on.

        ``affordable``: the budget allows another attempt after the failure.
        """
        self._over = True
        self._question = self._until = self._ask_at = None
        is_requeue = end.reason.startswith(_REASONS[REQUEUE])
        return self.requeue.rule(end, self._requeued, is_requeue, affordable)
