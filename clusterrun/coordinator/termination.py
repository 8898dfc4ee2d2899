"""Handles the end of the job: signals, time limits, preemption; pure.

A job is ended by others: at its time limit, for a job of higher priority, by an administrator, by
its owner. A signal says that it is, the scheduler says why.

    a notice (USR2), or our own clock    -AskJob-> JobTold -> ranks are told, and ended at the time said
    a TERM or INT, here or on a node     -AskJob-> JobTold -> the same where time is left, else the end
    a TERM or INT of some agents only    -AskJob-> JobTold -> nothing, where the scheduler ends nothing

Until the answer is here (or late) a TERM leaves the run *undecided*: nobody may rule how it ends.
"""

from __future__ import annotations

from clusterrun.coordinator.actions import AskJob
from clusterrun.coordinator.attempt import LiveAttempt
from clusterrun.coordinator.events import JobTold, NextQueued
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.requeue import PREEMPTION, STATES, TIME_LIMIT, RequeuePolicy
from clusterrun.coordinator.run_part import EndAsked, RunPart, Shared
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State
from clusterrun.runtime.machine_events import Now, earliest

ANSWER_SECONDS = 3.5
"""An answer of the scheduler that comes later than this decides nothing: it would kill before."""
EARLY_SECONDS = 90.0
"""The scheduler may send its signal up to 60 s early."""
FIRST_LOOK_SECONDS = 5.0
"""After a launch, which is not to share the processor with the scheduler's programs."""
ASK_AGAIN_SECONDS = 60.0
DUE_SECONDS = 1.0
"""Times of the scheduler are whole seconds."""
NOTICE_SECONDS = 30.0
"""The same notice from many nodes within this time is one notice."""
SAVING_SECONDS = 20.0
"""Kept at the end of a job for what comes after the ranks, beyond their grace."""
REQUEUE, CANCELLED, UNKNOWN, BY_HAND = "requeue", "cancelled", "unknown", "signal"
_WORDS = {
    TIME_LIMIT: "the job's time limit was reached",
    PREEMPTION: "preempted: the scheduler needs the nodes for another job",
    BY_HAND: "told by a signal to make room",
    REQUEUE: "the job was put back into the queue by an administrator",
}


@frozen
class _Asked:
    """A question that is open: the signal's wish (None for a notice) and when it came (steady clock).

    ``by_clock``: no signal came, it was due. ``some``: only some of the agents got it, so nobody may want
    the end of the run.
    """

    wish: RunOutcome | None
    at: float
    by_clock: bool = False
    some: bool = False


class Termination(RunPart):
    """One job's end; ``job_id`` is empty if no scheduler keeps the time.

    A call may return the wish that the run should end; after each, what waited for a ruling may be ruled.
    ``live`` is the attempt whose ranks may live, None if none can.
    ``shutdown``: the ranks were told that this job ends, and no other attempt is begun in it.
    ``stray``: the newest signal reached only some agents, and the scheduler does not end the job: whoever
    sent it ended those agents, and nothing else. ``abandoned``: this job's first process was killed, and what
    the scheduler does now, it does for that.
    """

    def __init__(self, shared: Shared, job_id: str) -> None:
        super().__init__(shared)
        orders = self._orders
        self._survival = orders.survival if job_id else replace(orders.survival, requeue="")
        self._grace, self._job_id = orders.grace, job_id
        self.requeue = RequeuePolicy(shared, self._survival)
        self.stray = self.shutdown = self.abandoned = False
        self._asked: _Asked | None = None
        self._unanswered = 0
        self._noticed = ""
        self._taken = self._requeued = self._over = False
        self._heard_at: float | None = None
        self._end_at: float | None = None
        self._until: float | None = None
        self._ask_at: float | None = None

    # --- what others ask ---

    @property
    def undecided(self) -> bool:
        """Whether a signal came whose meaning is not known yet: how the run ends must not be decided."""
        return self._asked is not None and self._asked.wish is not None

    def taken(self, ranks: int) -> None:
        self._taken = self._taken or ranks > 0

    def makes_room(self, reported: bool, stopping: bool) -> bool:
        """Ranks that all exited 0 did so for the notice, with their work not done.

        ``reported``: rank 0 said how far it is, and then ``stopping`` is its word on it.
        """
        return self.shutdown and (stopping if reported else self._taken)

    def wish(self) -> RunOutcome:
        return RunOutcome(STATES.get(self._noticed, State.PREEMPTED), _WORDS[self._noticed], 1)

    def begin(self, now: Now) -> RunOutcome | None:
        if not self._job_id:
            return None
        self._ask_at = now.steady + FIRST_LOOK_SECONDS
        end = self.requeue.begin()
        if end is None:
            self.requeue.queue()  # at once: this node may be lost before anything else
        return end

    def wakes_at(self) -> float | None:
        late = self._asked.at + ANSWER_SECONDS if self._asked else None
        return earliest(late, self._until, self._ask_at)

    def tick(self, now: Now, live: LiveAttempt | None) -> EndAsked | None:
        """Carry out what is due; to be called again where that is a wish, for more may be due."""
        late = self._asked is not None and now.steady >= self._asked.at + ANSWER_SECONDS
        if late and (asked := self._decide(now, self._by_the_clock(now), False, live)):
            return asked
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
        """What a signal means of which the scheduler does not say why it came."""
        if self._asked is not None and self._asked.wish is None:
            return TIME_LIMIT if self._ends_within(now, self._survival.notice + EARLY_SECONDS) else PREEMPTION
        some = self._asked is not None and self._asked.some
        return TIME_LIMIT if self._ends_within(now, self._grace) else "" if some else CANCELLED

    def _ends_within(self, now: Now, seconds: float) -> bool:
        return self._end_at is not None and now.steady >= self._end_at - seconds

    def _ask(self) -> None:
        self._unanswered += 1
        self._actions.append(AskJob())

    def look_again(self, now: Now) -> None:
        if self._job_id and self._ask_at is not None:
            self._ask_at = min(self._ask_at, now.steady + FIRST_LOOK_SECONDS)

    # --- signals, and what they mean ---

    def noticed(self, now: Now, live: LiveAttempt | None, by_clock: bool = False) -> None:
        heard_at = None if by_clock else self._heard_at
        fresh = heard_at is None or now.steady - heard_at >= NOTICE_SECONDS
        if self._over or self._asked or self._until is not None or not fresh:
            return
        self._heard_at = now.steady
        if self._job_id:
            self._asked = _Asked(None, now.steady, by_clock)
            self._ask()
        else:
            self._notify(now, BY_HAND, 0.0, live)

    def terminated(self, now: Now, wish: RunOutcome, some: bool = False) -> EndAsked | None:
        """This process, or an agent, was told to end; ``wish`` says so in words.

        ``some``: only some of the agents were, and not this process.
        """
        if self._over:
            return None
        if self._asked is not None and self.undecided:
            if self._asked.some and not some:
                self._asked = replace(self._asked, wish=wish, some=False)
            return None
        if not self._job_id:
            return EndAsked(wish)
        self.stray = False
        self._asked = _Asked(wish, now.steady, some=some)
        self._ask()
        return None

    def told(self, now: Now, event: JobTold, live: LiveAttempt | None) -> EndAsked | None:
        self._unanswered = max(0, self._unanswered - 1)
        if self._over:
            return None
        if event.end_at is not None:
            self._end_at = now.steady + event.end_at - now.wall
        self._requeued = self._requeued or event.requeued
        if self.undecided and self._unanswered and event.why in ("", UNKNOWN):
            return None  # maybe the answer to what was asked before the signal came
        why = self._by_the_clock(now) if event.why == UNKNOWN else event.why
        asked = self._decide(now, why, event.end_at is None and event.why in STATES, live)
        if event.why == UNKNOWN and self._end_at is None:
            self._ask_at = now.steady + ASK_AGAIN_SECONDS
        elif self._survival.requeue and self._end_at is not None and not self._noticed:
            self._ask_at = max(self._end_at - self._survival.notice, now.steady + 1.0)
        return asked

    def _decide(self, now: Now, why: str, sudden: bool, live: LiveAttempt | None) -> EndAsked | None:
        """What the signal means is known as well as it can be; ``sudden``: the job is being killed."""
        asked, self._asked = self._asked, None
        if asked is None:
            return None
        left = self._survival.notice if self._end_at is None else self._end_at - now.steady
        left -= self._grace + min(SAVING_SECONDS, self._survival.notice / 4)
        if sudden:
            left = self._grace / 4 if self._survival.requeue else 0.0
        early = why == PREEMPTION and left > 0
        if asked.wish is None:
            if not why and self._ends_within(now, self._survival.notice + EARLY_SECONDS):
                why = TIME_LIMIT if self._ends_within(now, self._survival.notice + DUE_SECONDS) else ""
            elif not why and not asked.by_clock:  # without a reason of the scheduler's it is a user's
                why = BY_HAND
            if why in ("", CANCELLED, REQUEUE):  # of these a TERM follows
                return None
            return self._notify(now, why, left, live)[1]
        if asked.some and not why:
            self.stray = True
            return None
        told, ended = self._notify(now, why, left, live) if early else (False, None)
        return ended if told or ended else self._end(now, why, asked.wish, asked.at)

    def _notify(
        self, now: Now, why: str, left: float, live: LiveAttempt | None
    ) -> tuple[bool, EndAsked | None]:
        """The ranks may end by themselves until their time is up; False if none live."""
        self._noticed, self.shutdown = why, bool(self._survival.requeue)
        seconds = max(0.0, min(left, self._survival.notice))
        told = live is not None and live.notice(now, why, 0.0 if why == BY_HAND else now.wall + seconds)
        if self._survival.requeue and not told:
            return False, EndAsked(self.wish())
        if self._survival.requeue and why != BY_HAND:
            self._until = now.steady + seconds
        return told, None

    def _end(self, now: Now, why: str, wish: RunOutcome, since: float) -> EndAsked:
        if why == CANCELLED:
            wish = replace(wish, reason=f"cancelled through the scheduler: {wish.reason}")
            if not self.abandoned:
                self.requeue.cancel(now, wish)
        elif why in _WORDS:
            wish = RunOutcome(STATES.get(why, State.CANCELLED), _WORDS[why], wish.exit_code)
        return EndAsked(wish, since)

    def queued(self, now: Now, event: NextQueued) -> None:
        self.requeue.queued(now, event)
        if self.requeue.lacks:
            again = now.steady + ASK_AGAIN_SECONDS
            self._ask_at = again if self._ask_at is None else min(self._ask_at, again)

    def rule(self, end: RunOutcome, affordable: bool) -> RunOutcome:
        """``end``, or PENDING where the run goes on; ``affordable``: what failed may be tried again.

        From now on signals mean nothing any more; ``requeue`` leads on.
        """
        self._over = True
        self._asked = self._until = self._ask_at = None
        return self.requeue.rule(end, self._requeued, end.reason == _WORDS[REQUEUE], affordable)
