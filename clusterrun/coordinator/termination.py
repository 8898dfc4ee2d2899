"""Handles the end of the job: signals, time limits, preemption; pure.

A job is ended by others: at its time limit, for a job of higher priority, by an administrator, by
its owner. A signal says that it is, the scheduler says why.

    a notice (USR2), or our own clock    -AskJob-> JobTold -> ranks get the notice, and are ended in time
    a TERM or INT, here or on a node     -AskJob-> JobTold -> the same if time is left, else the end
    a TERM or INT of some agents only    -AskJob-> JobTold -> nothing, if the scheduler ends nothing
    the signal of ``--sbatch signal=…``  -AskJob-> JobTold -> the notice, if the end of the job is near

Agents pass TERM, INT and users' signals on to the ranks that catch them, before the answer is here. Until
the answer is here (or late) a TERM leaves the run *undecided*: nobody may rule how it ends. The table of all
signals is docs/signals.md.
"""

from __future__ import annotations

import signal

from clusterrun.coordinator.actions import AskJob
from clusterrun.coordinator.attempt import LiveAttempt
from clusterrun.coordinator.events import JobTold, NextQueued
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.requeue import PREEMPTION, STATES, TIME_LIMIT, RequeuePolicy
from clusterrun.coordinator.run_part import EndAsked, RunPart, Shared
from clusterrun.model import contract
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
GRACE_OF_LIMIT_SECONDS = 8.0
"""A TERM this shortly before the end of the job, which the scheduler does not explain, is its time limit."""
DUE_SECONDS = 1.0
"""Times of the scheduler are whole seconds."""
NOTICE_SECONDS = 30.0
"""The same notice from many nodes within this time is one notice."""
HAND_OVER_SECONDS = 20.0
"""Kept between the end of the ranks and the end of their job, to hand the run over to the next one."""
SUDDEN_SECONDS = 2.0
"""From the notice to TERM if the job is being killed and the run goes on: more would delay the hand-over."""
REQUEUE, CANCELLED, UNKNOWN, BY_HAND = "requeue", "cancelled", "unknown", "signal"
_WORDS = {
    TIME_LIMIT: "the job's time limit was reached",
    PREEMPTION: "preempted: the scheduler needs the nodes for another job",
    BY_HAND: "told by a signal to make room",
    REQUEUE: "the job was put back into the queue by an administrator",
}


@frozen
class _Asked:
    """An open question: the wish of a TERM or INT (None: a notice), when it came (steady clock), its number.

    ``by_clock``: no signal came, it was due. ``some``: only some of the agents got it, so nobody may want
    the end of the run.
    """

    wish: RunOutcome | None
    at: float
    number: int
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
        self._kill_wait, self._job_id = orders.kill_wait, job_id
        self.requeue = RequeuePolicy(shared, self._survival)
        self.stray = self.shutdown = self.abandoned = False
        self._asked: _Asked | None = None
        self._unanswered = 0
        self._noticed = ""
        self._taken_signals: set[int] = set()
        self._requeued = self._over = False
        self._heard_at: float | None = None
        self._end_at: float | None = None
        self._until: float | None = None
        self._ask_at: float | None = None

    # --- what others ask ---

    @property
    def undecided(self) -> bool:
        """Whether a signal came whose meaning is not known yet: how the run ends must not be decided."""
        return self._asked is not None and self._asked.wish is not None

    def taken(self, number: int, ranks: int) -> None:
        """Signal ``number``, which may be a notice, was caught by so many ranks."""
        if ranks and (self._asked is not None or self.shutdown):
            self._taken_signals.add(number)

    def makes_room(self, reported: bool, stopping: bool) -> bool:
        """Whether ranks that all exited 0 did so for the notice, with their work not done.

        ``reported``: rank 0 reported its progress. Then ``stopping`` is its own answer, unless the ranks
        caught Slurm's TERM or the user's signal, of which ``clusterrun.training`` knows nothing.
        """
        if self._taken_signals - {contract.NOTICE_SIGNAL}:
            return self.shutdown
        return self.shutdown and (stopping if reported else bool(self._taken_signals))

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
        asked = self._asked
        if asked is not None and asked.wish is None and asked.number == contract.NOTICE_SIGNAL:
            return TIME_LIMIT if self._ends_within(now, self._survival.notice + EARLY_SECONDS) else PREEMPTION
        if self._ends_within(now, GRACE_OF_LIMIT_SECONDS):
            return TIME_LIMIT
        if asked is None or asked.some or asked.wish is None or self._is_users_notice(now, asked):
            return ""
        return CANCELLED

    def _is_users_notice(self, now: Now, asked: _Asked) -> bool:
        """Whether this is the signal that the user lets Slurm send before the time limit."""
        is_near = self._ends_within(now, self._survival.notice + EARLY_SECONDS)
        return asked.number == self._survival.signal and is_near

    def _ends_within(self, now: Now, seconds: float) -> bool:
        return self._end_at is not None and now.steady >= self._end_at - seconds

    def _ask(self) -> None:
        self._unanswered += 1
        self._actions.append(AskJob())

    def look_again(self, now: Now) -> None:
        if self._job_id and self._ask_at is not None:
            self._ask_at = min(self._ask_at, now.steady + FIRST_LOOK_SECONDS)

    # --- signals, and what they mean ---

    def noticed(
        self, now: Now, live: LiveAttempt | None, number: int = contract.NOTICE_SIGNAL, by_clock: bool = False
    ) -> None:
        """A notice came, or the user's own signal; any other signal means nothing for the run."""
        if number not in (contract.NOTICE_SIGNAL, self._survival.signal):
            return
        heard_at = None if by_clock else self._heard_at
        fresh = heard_at is None or now.steady - heard_at >= NOTICE_SECONDS
        if self._over or self._asked or self._until is not None or not fresh:
            return
        self._heard_at = now.steady
        if self._job_id:
            self._asked = _Asked(None, now.steady, number, by_clock)
            self._ask()
        elif number == contract.NOTICE_SIGNAL:
            self._notify(now, BY_HAND, 0.0, live)

    def terminated(self, now: Now, wish: RunOutcome, number: int, some: bool = False) -> EndAsked | None:
        """This process, or an agent, got TERM or INT; ``wish`` says so in words.

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
        self._asked = _Asked(wish, now.steady, number, some=some)
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
        if not why and self._is_users_notice(now, asked):
            if live is not None and asked.wish is not None:
                live.continue_after(now, asked.number)
            is_own = asked.number == contract.NOTICE_SIGNAL
            if self._until is not None or not (self._survival.requeue or is_own):
                return None
            return self._notify(now, TIME_LIMIT, self._seconds_left(now, TIME_LIMIT), live)[1]
        left = self._seconds_left(now, why)
        if sudden:
            left = SUDDEN_SECONDS if self._survival.requeue else 0.0
        early = why == PREEMPTION and left > 0
        if asked.wish is None:
            if not why and self._ends_within(now, self._survival.notice + EARLY_SECONDS):
                why = TIME_LIMIT if self._ends_within(now, self._survival.notice + DUE_SECONDS) else ""
            elif not why and not asked.by_clock and asked.number == contract.NOTICE_SIGNAL:
                why = BY_HAND  # without a reason of the scheduler's it is a user's
            if why in ("", CANCELLED, REQUEUE):  # of these a TERM follows
                if not self.shutdown:
                    self._taken_signals.clear()
                return None
            if why == PREEMPTION and not self._survival.signal and live is not None:
                # With PreemptParameters=send_user_signal Slurm sends our notice in the place of TERM.
                live.signal(signal.SIGTERM)
            return self._notify(now, why, left, live)[1]
        if asked.some and not why:
            self.stray = True
            return None
        told, ended = self._notify(now, why, left, live) if early else (False, None)
        return ended if told or ended else self._end(now, why, asked.wish, asked.at)

    def _seconds_left(self, now: Now, why: str) -> float:
        """From now until all ranks get TERM, so that they can save and the run be handed over.

        At a preemption Slurm sends TERM at the beginning, so what is left does not catch it, or does not end.
        """
        notice = self._survival.notice
        left = notice if self._end_at is None else self._end_at - now.steady
        hand_over = min(HAND_OVER_SECONDS, notice / 4)
        if why == PREEMPTION:
            return left - min(hand_over, left / 4)
        return left - hand_over - min(self._kill_wait, (notice - hand_over) / 2)

    def _notify(
        self, now: Now, why: str, left: float, live: LiveAttempt | None
    ) -> tuple[bool, EndAsked | None]:
        """The ranks may end by themselves until their time is up; False if none live."""
        self._noticed, self.shutdown = why, bool(self._survival.requeue)
        seconds = max(0.0, left)
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
        again = end.reason.startswith(_WORDS[REQUEUE])
        return self.requeue.rule(end, self._requeued, again, affordable)
