"""The life of a run, from claiming the first attempt to releasing the agents; pure.

``NEXT`` is the whole state machine: it maps each stage and outcome to the next stage. Parts return outcomes,
and ``follow`` enters the stage that the table gives.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import ClaimEpoch
from clusterrun.coordinator.attempt import LiveAttempt, have_started
from clusterrun.coordinator.events import ClaimFailed, EpochClaimed, LauncherEnded, MemoryKilled, Progressed
from clusterrun.coordinator.failures import FailureEvent, FailureKind, RunOutcome
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.recovery import in_words
from clusterrun.coordinator.restart_policy import SUPERSEDED, RestartPolicy
from clusterrun.coordinator.run_part import (
    AttemptOver,
    EndAsked,
    NextAttempt,
    NoRanks,
    Outcome,
    PortReady,
    RunOver,
    RunPart,
    Shared,
    TooFewNodes,
    WorldFormed,
    no_ranks,
)
from clusterrun.coordinator.shutdown import Shutdown
from clusterrun.coordinator.termination import Termination
from clusterrun.coordinator.world_formation import WorldFormation
from clusterrun.model.frozen import Any, frozen, replace
from clusterrun.model.states import State
from clusterrun.model.world import Meeting
from clusterrun.protocol.messages import PortReserved, ReservePort
from clusterrun.runtime.machine_events import Now, earliest
from clusterrun.slurm_text.srun_messages import cancelled_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.hang_monitor import HangMonitor
    from clusterrun.preflight.session.session import Session

RESERVE_SECONDS = 30.0
# Agents that end within this time after Slurm's message about their memory end because of it.
MEMORY_SECONDS = 5.0
# Ends for which ranks get the time that Slurm gives them to save.
ENDED_FROM_OUTSIDE = (State.CANCELLED, State.TIMEOUT, State.PREEMPTED)


class RunStage(enum.Enum):
    """How far the run is."""

    CLAIMING = "an attempt number is being taken"
    GATHERING_AGENTS = "agents are on their way, or their nodes are checked"
    RESERVING = "rank 0's node looks for a port"
    LIVE = "ranks may live"
    DECIDING = "no rank lives; another attempt may follow"
    SHUTTING_DOWN = "no rank lives; agents are leaving"


# SHUTTING_DOWN, and with it the run, ends when agents and launcher have ended, or at a time limit.
NEXT: dict[RunStage, dict[type, RunStage]] = {
    RunStage.CLAIMING: {EpochClaimed: RunStage.GATHERING_AGENTS, RunOver: RunStage.SHUTTING_DOWN},
    RunStage.GATHERING_AGENTS: {
        WorldFormed: RunStage.RESERVING,
        TooFewNodes: RunStage.DECIDING,
        NoRanks: RunStage.DECIDING,
        RunOver: RunStage.SHUTTING_DOWN,
    },
    RunStage.RESERVING: {
        PortReady: RunStage.LIVE,
        NoRanks: RunStage.DECIDING,
        RunOver: RunStage.SHUTTING_DOWN,
    },
    RunStage.LIVE: {AttemptOver: RunStage.DECIDING},
    RunStage.DECIDING: {NextAttempt: RunStage.CLAIMING, RunOver: RunStage.SHUTTING_DOWN},
    RunStage.SHUTTING_DOWN: {},
}


@frozen
class Collaborators:
    """The objects of preflight/ and monitor/ that the coordinator uses. A run without them loads neither."""

    make_session: Callable[..., Session] | None = None  # makes the pre-flight of an attempt
    watch: Callable[..., HangMonitor] | None = None  # makes the monitor of the ranks
    names: tuple[str, ...] = ()  # nodes of the allocation in order; empty if the scheduler does not name them
    job_id: str = ""  # empty without a scheduler
    job_restarts: int = 0  # how often the scheduler had started the job again


class Lifecycle(RunPart):
    """One run's way through its stages. It appends its actions to ``actions``."""

    def __init__(self, shared: Shared, collaborators: Collaborators) -> None:
        super().__init__(shared)
        self._shared, self._watch = shared, collaborators.watch
        self.stage = RunStage.CLAIMING
        self.epoch = -1
        self.live: LiveAttempt | None = None
        self.watching: HangMonitor | None = None
        self.kill_wait = shared.orders.kill_wait
        self.termination = Termination(shared, collaborators.job_id)
        self.formation = WorldFormation(shared, collaborators.make_session)
        self._restart = RestartPolicy(shared, self.formation.lost_nodes, self.termination)
        self._shutdown = Shutdown(shared, self.termination, self._restart)
        self._overdue_at: float | None = None
        self._limit_at: float | None = None
        # The last message about memory that ran out, and until when it explains the end of agents.
        self._memory: FailureEvent | None = None
        self._memory_until = 0.0

    @property
    def superseded(self) -> bool:
        return self._restart.superseded

    # --- from stage to stage ---

    def follow(self, now: Now, outcome: Outcome | EpochClaimed | None) -> None:
        """Enter the stage that ``NEXT`` gives for ``outcome``, and on, until a stage waits for an event."""
        while outcome is not None:
            if isinstance(outcome, RunOver):
                # A signal may have caused the end. A decision between attempts has already waited for it.
                has_waited = self.stage is RunStage.DECIDING or self.superseded
                has_waited = has_waited or outcome.end is self._restart.requested_end
                if not has_waited and self.termination.undecided:
                    return
            if isinstance(outcome, TooFewNodes) and not self._restart.may_follow(outcome.failure_event):
                outcome = self.formation.form_without(now)
                continue
            self.stage = NEXT[self.stage][type(outcome)]
            outcome = _BEGIN[self.stage](self, now, outcome)

    def heed(self, now: Now, end: EndAsked | None) -> None:
        """Handle a request to end, if there is one. Then decide what waited for the meaning of a signal."""
        if end is not None:
            self.ask(now, end.wish, end.at)
        if self.stage is RunStage.DECIDING:
            self.follow(now, self._restart.decided(now))

    def ask(self, now: Now, wish: RunOutcome, at: float | None = None) -> None:
        """Request the end of the run, since ``at``. The first request determines the reported reason."""
        judged = self._restart.judged
        began = self.live.failure_event_at if self.live else judged.failed_at if judged else None
        since = None if began is None else (now.steady if at is None else at) - began
        if self.watching is not None:
            wish = self.watching.explained(now, wish)
        if self.stage is RunStage.SHUTTING_DOWN or not self._restart.ask(wish, since):
            return
        self._end_now(now, wish)

    def supersede(self, now: Now, epoch: int) -> None:
        if self.superseded:
            return
        self._restart.superseded = True
        self._state_keeper.stop()
        self._note(f"another coordinator has claimed attempt {epoch}: this one ends")
        if self.stage is not RunStage.SHUTTING_DOWN:
            self._end_now(now, SUPERSEDED)

    def _end_now(self, now: Now, end: RunOutcome) -> None:
        if self.live is not None:
            grace = self.kill_wait if end.state in ENDED_FROM_OUTSIDE else None
            self.follow(now, self.live.stop(now, self._restart.ranks_ended_for, grace))
        elif self._restart.judged is None:
            self.follow(now, RunOver(end))

    def wakes_at(self) -> float | None:
        if self.stage is RunStage.SHUTTING_DOWN:
            return self._shutdown.wakes_at()
        parts = (self.formation, self._restart, self.termination, self.live, self.watching)
        return earliest(self._overdue_at, self._limit_at, *(part.wakes_at() for part in parts if part))

    def tick(self, now: Now) -> None:
        if self.stage is RunStage.SHUTTING_DOWN:
            self._shutdown.tick(now)
            return
        while end := self.termination.tick(now, self.live):
            self.heed(now, end)
        if self._limit_at is not None and now.steady >= self._limit_at:
            self._limit_at = None
            message = f"the time limit of {self._orders.time_limit:g} s was reached"
            self.ask(now, RunOutcome(State.TIMEOUT, message, 1))
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            name = self._membership.world[0].name
            message = f"{name} named no port within {RESERVE_SECONDS:g} s"
            since, first = now.steady - RESERVE_SECONDS, self._membership.world[0].node
            kind = self._unless_overloaded(now, FailureKind.START, since, [first])
            self.follow(now, no_ranks(now, kind, name, message))
        if self.stage is RunStage.GATHERING_AGENTS:
            self.follow(now, self.formation.tick(now))
        if self.stage is RunStage.DECIDING:
            self.follow(now, self._restart.tick(now))
        if self.live is not None:
            self.follow(now, self.live.tick(now))
        if self.watching is not None:
            self.heed(now, self.watching.tick(now))

    # --- beginnings of stages ---

    def begin(self, now: Now) -> None:
        self._limit_at = now.steady + self._orders.time_limit if self._orders.time_limit > 0 else None
        self._actions.append(ClaimEpoch())

    def _claim(self, now: Now, outcome: NextAttempt) -> None:
        self._actions.append(ClaimEpoch(self.epoch))

    def _gather_agents(self, now: Now, event: EpochClaimed) -> Outcome | None:
        first, restart = self.epoch < 0, self._restart
        self.epoch = event.epoch
        if not first:
            self._state_keeper.open(now, event.epoch, restart.why, restart.cause, self._membership.names())
            return self.formation.begin_again(now)
        self._state_keeper.remember(event.earlier, event.excluded, event.lease)
        self._restart.trained = any(attempt.nodes for attempt in event.earlier)
        self._state_keeper.open(now, event.epoch, in_words(event), event.cause)
        if end := self._restart.used_up() or self.termination.begin(now):
            return RunOver(end)
        self.formation.begin(now, event)
        return None

    def _reserve(self, now: Now, outcome: WorldFormed) -> None:
        self._overdue_at = now.steady + RESERVE_SECONDS
        self._send(self._membership.world[0], ReservePort(self.epoch))

    def _start(self, now: Now, outcome: PortReady) -> None:
        self._overdue_at = None
        self.live = LiveAttempt(self._shared, self.epoch, self.termination.held_signals)
        self.live.start(now, outcome.meeting, self.formation.environment, self._restart.left)
        if self._watch is not None:
            self.watching = self._watch(self._shared, self.live, now)

    def _decide(self, now: Now, outcome: AttemptOver | NoRanks | TooFewNodes) -> Outcome | None:
        self._overdue_at = None
        if not isinstance(outcome, AttemptOver):
            self.formation.end()  # later messages of agents, workers or their launcher form no world
            return self._restart.on_failure_before_ranks(now, outcome.failure_event)
        if self.watching is not None:
            self.watching.over(now, outcome.completed)
        self.live = self.watching = None
        self._restart.over(now, outcome)
        return None

    def _shut_down(self, now: Now, outcome: RunOver) -> None:
        self._overdue_at = self._limit_at = None
        self._shutdown.begin(now, outcome)
        self.formation.end()
        self._restart.end()

    # --- events ---

    def claimed(self, now: Now, event: EpochClaimed) -> None:
        if self.stage is RunStage.CLAIMING:
            self.follow(now, event)

    def not_claimed(self, now: Now, event: ClaimFailed) -> None:
        """End the run, because no attempt can be claimed.

        The last attempt's failure remains the first reason.
        """
        if self.stage is not RunStage.CLAIMING:
            return
        last = self._state_keeper.state.attempts[-1].failure if self._state_keeper.state.attempts else None
        reason = f"{last.why}; {event.why}" if last else event.why
        self.follow(now, RunOver(RunOutcome(State.FAILED, reason, 1)))

    def port_reserved(self, now: Now, member: Member, message: PortReserved) -> None:
        if self.stage is not RunStage.RESERVING or member.place != 0:
            return
        if message.port:
            self.follow(now, PortReady(Meeting(member.hello.address, message.port)))
            return
        reason = f"{member.name} could not reserve a port: {message.why}"
        self.follow(now, no_ranks(now, FailureKind.START, member.name, reason))

    def lost(self, now: Now, member: Member, why: str) -> None:
        """Handle the loss of an agent; ``member`` has already left the membership."""
        message = f"{member.name} (node {member.node}) was lost: {why}{self._membership.launcher_words}"
        forming = self.stage in (RunStage.GATHERING_AGENTS, RunStage.RESERVING)
        kind = FailureKind.OVERLOAD if forming and member.is_excused else FailureKind.NODE
        failure_event = failures.of_node(kind, member.name, member.heard_wall, message)
        failure_event = replace(failure_event, out_of_reach=not member.is_dropped)
        memory = self._killed_for_memory(now)
        failure_event = memory or failure_event
        if self.stage is RunStage.SHUTTING_DOWN:
            self._shutdown.check(now)
        elif forming and memory:
            self.follow(now, NoRanks(memory))  # the check blames no node for it
        elif self.stage is RunStage.GATHERING_AGENTS:
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
            self._note(message)

    def memory_killed(self, now: Now, event: MemoryKilled) -> None:
        """Handle Slurm's message about a step that was killed for its memory. The first line names the node.

        The message alone ends nothing. It explains the loss of agents, before and after it.
        """
        if self._killed_for_memory(now) is None:
            self._memory_until = now.steady + MEMORY_SECONDS
            self._memory = failures.of_memory(event.node, now.wall, event.line)
            if self.live is not None:
                self.live.explain_losses(self._memory)

    def _killed_for_memory(self, now: Now) -> FailureEvent | None:
        return self._memory if now.steady <= self._memory_until else None

    def launcher_ended(self, now: Now, event: LauncherEnded) -> None:
        """Handle the end of the launcher, which is fatal only while agents are still joining."""
        # srun repeats its report of a node.
        output = f": {' / '.join(dict.fromkeys(event.output))}" if event.output else ""
        message = f"the launcher ended with code {event.code}{output}"
        if step := cancelled_step(event.output):
            message = (
                f"step {step} was cancelled (scancel {step}, or a signal to its srun), without time to save"
            )
        if 0 < event.launch < self._membership.launches:
            self._note(f"{message}; agents were already launched again")
            return
        if event.whole:
            self._membership.launcher_lives = event.others
        joining = self.formation.joining
        self.follow(now, self.formation.launcher_ended(now, event, message))
        if event.whole and self.stage is RunStage.SHUTTING_DOWN:
            self._shutdown.check(now)
        elif event.whole and event.others:
            self._note(message)
        elif event.whole and not joining:
            self._membership.launcher_words = f"; {message}"
            self._note(message)
            if self.live is not None and self._killed_for_memory(now) is None:
                self.live.launcher_ended(now, message)

    def hold(self, number: int) -> None:
        """Keep a signal of the user for the ranks if they do not run yet."""
        if not have_started(self.live) and self.stage is not RunStage.SHUTTING_DOWN:
            self.termination.hold(number)

    def progressed(self, now: Now, event: Progressed) -> None:
        if event.epoch == self.epoch and self.stage in (RunStage.LIVE, RunStage.DECIDING):
            self.follow(now, self._restart.progressed(now, event))


# The function that begins each stage, given the outcome that led to it. It may return an outcome at once.
_BEGIN: dict[RunStage, Callable[[Lifecycle, Now, Any], Outcome | None]] = {
    RunStage.CLAIMING: Lifecycle._claim,
    RunStage.GATHERING_AGENTS: Lifecycle._gather_agents,
    RunStage.RESERVING: Lifecycle._reserve,
    RunStage.LIVE: Lifecycle._start,
    RunStage.DECIDING: Lifecycle._decide,
    RunStage.SHUTTING_DOWN: Lifecycle._shut_down,
}
