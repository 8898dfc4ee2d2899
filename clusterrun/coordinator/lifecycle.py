"""The life of a run from the first claim to the last farewell, attempt by attempt; pure.

``NEXT`` is the whole of it: which outcome leads from each stage to which other one. Parts return outcomes,
and ``follow`` goes where the table leads.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import ClaimEpoch, ReadProgress, Send
from clusterrun.coordinator.attempt import LiveAttempt
from clusterrun.coordinator.events import ClaimFailed, EpochClaimed, LauncherEnded, Progressed
from clusterrun.coordinator.failures import FailureEvent, FailureKind, RunOutcome
from clusterrun.coordinator.lost_nodes import LostNodes
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.outcomes import (
    AttemptOver,
    EndAsked,
    NextAttempt,
    NoRanks,
    Outcome,
    PortReady,
    RunOver,
    TooFewNodes,
    WorldFormed,
    no_ranks,
)
from clusterrun.coordinator.recovery import in_words
from clusterrun.coordinator.restart_policy import SUPERSEDED, RestartDecision, RestartPolicy
from clusterrun.coordinator.run_part import RunPart, Shared
from clusterrun.coordinator.shutdown import Shutdown
from clusterrun.coordinator.termination import Termination
from clusterrun.coordinator.world_formation import WorldFormation
from clusterrun.model.frozen import Any, frozen, replace
from clusterrun.model.states import Phase, State
from clusterrun.model.world import Meeting
from clusterrun.protocol.messages import PortReserved, ReservePort
from clusterrun.runtime.machine_events import Note, Now, earliest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.hang_monitor import HangMonitor
    from clusterrun.preflight.session.session import Session

RESERVE_SECONDS = 30.0
READ_SECONDS = 5.0
"""For the answer how far ranks have come; then it goes on without."""
_DAY = 86400


class RunStage(enum.Enum):
    """How far the run is."""

    CLAIMING = "an attempt number is being taken"
    MUSTERING = "agents are on their way, or their nodes are checked"
    RESERVING = "rank 0's node looks for a port"
    LIVE = "ranks may live"
    BETWEEN = "no rank lives; another attempt may follow"
    PARTING = "no rank lives; agents are leaving"


NEXT: dict[RunStage, dict[type, RunStage]] = {
    RunStage.CLAIMING: {EpochClaimed: RunStage.MUSTERING, RunOver: RunStage.PARTING},
    RunStage.MUSTERING: {
        WorldFormed: RunStage.RESERVING,
        TooFewNodes: RunStage.BETWEEN,
        NoRanks: RunStage.BETWEEN,
        RunOver: RunStage.PARTING,
    },
    RunStage.RESERVING: {
        PortReady: RunStage.LIVE,
        NoRanks: RunStage.BETWEEN,
        RunOver: RunStage.PARTING,
    },
    RunStage.LIVE: {AttemptOver: RunStage.BETWEEN},
    RunStage.BETWEEN: {NextAttempt: RunStage.CLAIMING, RunOver: RunStage.PARTING},
    RunStage.PARTING: {},
}
"""Agents and the launcher that are gone, or a limit, end PARTING, and with it the run."""


@frozen
class Collaborators:
    """What the coordinator uses of preflight/ and monitor/, passed in: a run without them loads neither.

    ``examine`` makes the pre-flight of an attempt, ``watch`` the monitor of its ranks. ``names`` are the
    nodes of the allocation in order, as the scheduler tells them; empty: it does not. ``job_id`` is this
    job's, empty without a scheduler.
    """

    examine: Callable[..., Session] | None = None
    watch: Callable[..., HangMonitor] | None = None
    names: tuple[str, ...] = ()
    job_id: str = ""


class Restart(RunPart):
    """What BETWEEN decides; a call returns ``NextAttempt`` or ``RunOver`` once it is decided.

    It depends on how far the ranks had come, so that is read first. ``why`` and ``cause`` are those of the
    next attempt.
    """

    def __init__(
        self, shared: Shared, judge: RestartPolicy, lost_nodes: LostNodes, termination: Termination
    ) -> None:
        super().__init__(shared)
        self.why = self.cause = ""
        self._judge, self._lost_nodes, self._termination = judge, lost_nodes, termination
        self._over: AttemptOver | None = None
        self._progress: Progressed | None = None
        self._read_by: float | None = None
        self._pause_until: float | None = None

    def wakes_at(self) -> float | None:
        return self._pause_until if self._read_by is None else self._read_by

    def tick(self, now: Now) -> Outcome | None:
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

    def progressed(self, now: Now, event: Progressed) -> Outcome | None:
        """How far ranks of the newest attempt have come."""
        self._state_keeper.progressed(event.step, event.checkpoint)
        self._progress = event
        return None if self._read_by is None else self._rule(now)

    def end(self) -> None:
        self._read_by = self._pause_until = None

    def may_follow(self, failure_event: FailureEvent) -> bool:
        """Another attempt may follow this failure that came before any rank."""
        return bool(self._ruling_before(failure_event).again)

    def _ruling_before(self, failure_event: FailureEvent) -> RestartDecision:
        attempts, room = self._state_keeper.state.attempts, self._lost_nodes.room
        return self._judge.rule_before(failure_event, attempts, room)

    def failure_event(self, now: Now, failure_event: FailureEvent) -> Outcome | None:
        """It came to no rank."""
        if self._termination.undecided:
            return None  # no rank lives, so whatever the signal means ends the run, and may be the cause
        self._blame(failure_event)
        return self._follow(now, self._ruling_before(failure_event))

    def _rule(self, now: Now) -> Outcome | None:
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

    def decided(self, now: Now) -> Outcome | None:
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

    def _follow(self, now: Now, ruling: RestartDecision) -> Outcome | None:
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


class Lifecycle(RunPart):
    """One run's way through its stages; what is to be done goes to ``actions``."""

    def __init__(self, shared: Shared, collaborators: Collaborators) -> None:
        super().__init__(shared)
        self._shared, self._watch = shared, collaborators.watch
        self.stage = RunStage.CLAIMING
        self.epoch = -1
        self.live: LiveAttempt | None = None
        self.watching: HangMonitor | None = None
        self._judge = RestartPolicy(self._orders)
        self.termination = Termination(shared, collaborators.job_id)
        self._shutdown = Shutdown(shared, self.termination)
        self.formation = WorldFormation(shared, collaborators.examine)
        self._restart = Restart(shared, self._judge, self.formation.lost_nodes, self.termination)
        self._overdue_at: float | None = None
        self._limit_at: float | None = None

    @property
    def superseded(self) -> bool:
        return self._judge.superseded

    # --- from stage to stage ---

    def follow(self, now: Now, outcome: Outcome | EpochClaimed | None) -> None:
        """Go where ``NEXT`` leads, and on from there, until a stage waits for what happens next."""
        while outcome is not None:
            if isinstance(outcome, RunOver) and self._waits_for_a_word(outcome.end):
                return
            if isinstance(outcome, TooFewNodes) and not self._restart.may_follow(outcome.failure_event):
                outcome = self.formation.form_without(now)
                continue
            self._end_stage(outcome)
            outcome = _BEGIN[self.stage](self, now, outcome)

    def _end_stage(self, outcome: Outcome | EpochClaimed) -> None:
        self.stage = NEXT[self.stage][type(outcome)]

    def _waits_for_a_word(self, end: RunOutcome) -> bool:
        """It may come from what a signal is about that is not understood yet, which ends the run anyway."""
        if self.stage is RunStage.BETWEEN or self.superseded or end is self._judge.asked:
            return False  # what is ruled between attempts has waited
        return self.termination.undecided

    def heed(self, now: Now, asked: EndAsked | None) -> None:
        """Somebody may want an end, or what a signal meant may be known now: then what waited is ruled."""
        if asked is not None:
            self.ask(now, asked.wish, asked.at)
        if self.stage is RunStage.BETWEEN:
            self.follow(now, self._restart.decided(now))

    def ask(self, now: Now, wish: RunOutcome, at: float | None = None) -> None:
        """Somebody wants the run to end, since ``at``; the first to ask is the one who is reported."""
        began = self.live.failure_event_at if self.live else self._restart.failed_at
        since = None if began is None else (now.steady if at is None else at) - began
        if self.stage is RunStage.PARTING or not self._judge.ask(wish, since):
            return
        self._end_now(now, wish)

    def supersede(self, now: Now, epoch: int) -> None:
        if self.superseded:
            return
        self._judge.superseded = True
        self._state_keeper.stop()
        self._actions.append(
            Note(f"attempt {epoch} of another coordinator stands in the run directory: ending")
        )
        if self.stage is not RunStage.PARTING:
            self._end_now(now, SUPERSEDED)

    def _end_now(self, now: Now, end: RunOutcome) -> None:
        if self.live is not None:
            self.follow(now, self.live.stop(now, self._judge.cause))
        elif not self._restart.weighs:
            self.follow(now, RunOver(end))

    # --- time ---

    def wakes_at(self) -> float | None:
        if self.stage is RunStage.PARTING:
            return self._shutdown.wakes_at()
        parts = (self.formation, self._restart, self.termination, self.live, self.watching)
        return earliest(self._overdue_at, self._limit_at, *(part.wakes_at() for part in parts if part))

    def tick(self, now: Now) -> None:
        if self.stage is RunStage.PARTING:
            self._shutdown.tick(now)
            return
        while asked := self.termination.tick(now, self.live):
            self.heed(now, asked)
        if self._limit_at is not None and now.steady >= self._limit_at:
            self._limit_at = None
            words = f"the time limit of {self._orders.time_limit:g} s was reached"
            self.ask(now, RunOutcome(State.TIMEOUT, words, 1))
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            name = self._membership.world[0].name
            words = f"{name} named no port within {RESERVE_SECONDS:g} s"
            self.follow(now, no_ranks(now, FailureKind.START, name, words))
        if self.stage is RunStage.MUSTERING:
            self.follow(now, self.formation.tick(now))
        if self.stage is RunStage.BETWEEN:
            self.follow(now, self._restart.tick(now))
        if self.live is not None:
            self.follow(now, self.live.tick(now))
        if self.watching is not None:
            self.heed(now, self.watching.tick(now))

    # --- what begins each stage ---

    def begin(self, now: Now) -> None:
        self._limit_at = now.steady + self._orders.time_limit if self._orders.time_limit > 0 else None
        self._actions.append(ClaimEpoch())

    def _claim(self, now: Now, outcome: NextAttempt) -> None:
        self._actions.append(ClaimEpoch(self.epoch))

    def _muster(self, now: Now, event: EpochClaimed) -> Outcome | None:
        """Launch agents for the first attempt, see who is left for a later one."""
        first, restart = self.epoch < 0, self._restart
        self.epoch = event.epoch
        if not first:
            self._state_keeper.open(now, event.epoch, restart.why, restart.cause, self._membership.names())
            return self.formation.begin_again(now)
        self._state_keeper.remember(event.earlier, event.excluded)
        self._judge.trained = any(attempt.nodes for attempt in event.earlier)
        self._state_keeper.open(now, event.epoch, in_words(event), event.cause)
        if end := self.termination.begin(now):
            return RunOver(end)
        self.formation.begin(now, event)
        return None

    def _reserve(self, now: Now, outcome: WorldFormed) -> None:
        self._overdue_at = now.steady + RESERVE_SECONDS
        self._actions.append(Send(self._membership.world[0].link, ReservePort(self.epoch)))

    def _start(self, now: Now, outcome: PortReady) -> None:
        self._overdue_at = None
        self.live = LiveAttempt(self._shared, self.epoch)
        self.live.start(now, outcome.meeting, self.formation.environment)
        if self._watch is not None:
            self.watching = self._watch(self._shared, self.live, now)

    def _weigh(self, now: Now, outcome: AttemptOver | NoRanks | TooFewNodes) -> Outcome | None:
        self._overdue_at = None
        if not isinstance(outcome, AttemptOver):
            self.formation.end()  # what agents, workers or their launcher say from now on forms no world
            return self._restart.failure_event(now, outcome.failure_event)
        if self.watching is not None:
            self.watching.over(now, outcome.completed)
        self.live = self.watching = None
        self._restart.over(now, outcome)
        return None

    def _part(self, now: Now, outcome: RunOver) -> None:
        self._overdue_at = self._limit_at = None
        self._shutdown.begin(now, outcome, self.superseded)
        self.formation.end()
        self._restart.end()

    # --- what happens ---

    def claimed(self, now: Now, event: EpochClaimed) -> None:
        if self.stage is RunStage.CLAIMING:
            self.follow(now, event)

    def not_claimed(self, now: Now, event: ClaimFailed) -> None:
        """The file system takes no attempt: the failure of the one before stays the reason, with this one."""
        if self.stage is not RunStage.CLAIMING:
            return
        last = self._state_keeper.state.attempts[-1].failure if self._state_keeper.state.attempts else None
        words = f"{last.why}; {event.why}" if last else event.why
        self.follow(now, RunOver(RunOutcome(State.FAILED, words, 1)))

    def port_reserved(self, now: Now, member: Member, message: PortReserved) -> None:
        """Rank 0's node holds a port: start everywhere."""
        if self.stage is not RunStage.RESERVING or member.place != 0:
            return
        if message.port:
            self.follow(now, PortReady(Meeting(member.hello.address, message.port)))
            return
        words = f"{member.name} could not reserve a port: {message.why}"
        self.follow(now, no_ranks(now, FailureKind.START, member.name, words))

    def lost(self, now: Now, member: Member, why: str) -> None:
        """An agent will not be heard again; ``member`` has left the membership already."""
        words = f"{member.name} (node {member.node}) was lost: {why}{self._membership.launcher_words}"
        failure_event = failures.of_node(FailureKind.NODE, member.name, member.heard_wall, words)
        if self.stage is RunStage.PARTING:
            self._shutdown.check(now)
        elif self.stage is RunStage.MUSTERING:
            self.follow(now, self.formation.lost(now, member, why, failure_event))
        elif member.place < 0:
            self._state_keeper.warn(f"the idle node {member.name} was lost: {why}")
        elif (live := self.live) is not None:
            if self.watching is not None:
                self.heed(now, self.watching.lost(now, member, why))
            self.follow(now, live.lost(now, member, failure_event))
        elif self.stage is RunStage.RESERVING:
            self.follow(now, NoRanks(failure_event))
        else:
            self._actions.append(Note(words))

    def launcher_ended(self, now: Now, event: LauncherEnded) -> None:
        """Fatal only where agents are still on their way; else they tell by themselves whether they live."""
        said = f": {' / '.join(event.said)}" if event.said else ""
        words = f"the launcher ended with code {event.code}{said}"
        if 0 < event.launch < self._membership.launches:
            self._actions.append(Note(f"{words}; agents were launched anew before that was heard"))
            return
        if event.whole:
            self._membership.launcher_lives = event.others
        joining = self.formation.joining
        self.follow(now, self.formation.launcher_ended(now, event, words))
        if event.whole and self.stage is RunStage.PARTING:
            self._shutdown.check(now)
        elif event.whole and event.others:
            self._actions.append(Note(words))
        elif event.whole and not joining:
            self._membership.launcher_words = f"; {words}"
            self._actions.append(Note(words))
            if self.live is not None:
                self.live.launcher_ended(now, words)

    def progressed(self, now: Now, event: Progressed) -> None:
        """How far ranks have come; what follows their end depends on it."""
        if event.epoch == self.epoch and self.stage in (RunStage.LIVE, RunStage.BETWEEN):
            self.follow(now, self._restart.progressed(now, event))


def _clock(wall: float) -> str:
    """A time of the day, as it is the same everywhere."""
    minutes, seconds = divmod(int(wall) % _DAY, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d} UTC"


_BEGIN: dict[RunStage, Callable[[Lifecycle, Now, Any], Outcome | None]] = {
    RunStage.CLAIMING: Lifecycle._claim,
    RunStage.MUSTERING: Lifecycle._muster,
    RunStage.RESERVING: Lifecycle._reserve,
    RunStage.LIVE: Lifecycle._start,
    RunStage.BETWEEN: Lifecycle._weigh,
    RunStage.PARTING: Lifecycle._part,
}
"""What begins each stage, given the outcome that led to it; it may have an outcome at once."""
