"""The life of a run from the first claim to the last farewell, attempt by attempt; pure.

``NEXT`` is the whole of it: what leads from each stage to which other one.
"""

from __future__ import annotations

import enum

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import ClaimEpoch, LaunchAgents, Send
from clusterrun.coordinator.attempt import LiveAttempt
from clusterrun.coordinator.failures import FailureKind, RunOutcome
from clusterrun.coordinator.hang_monitor import HangMonitor
from clusterrun.coordinator.recovery import in_words
from clusterrun.coordinator.restart import Restart
from clusterrun.coordinator.restart_policy import SUPERSEDED, RestartPolicy
from clusterrun.coordinator.shutdown import Shutdown
from clusterrun.coordinator.world_formation import WorldFormation
from clusterrun.model.states import State
from clusterrun.model.world import Meeting
from clusterrun.protocol.messages import ReservePort
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.collaborators import Collaborators
    from clusterrun.coordinator.events import ClaimFailed, EpochClaimed, LauncherEnded, Progressed
    from clusterrun.coordinator.failures import FailureEvent
    from clusterrun.coordinator.membership import Member, Membership
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.protocol.messages import PortReserved
    from clusterrun.protocol.timeouts import Timeouts
    from clusterrun.runtime.machine_events import Now

RESERVE_SECONDS = 30.0


class RunStage(enum.Enum):
    """How far the run is."""

    CLAIMING = "an attempt number is being taken"
    MUSTERING = "agents are on their way, or their nodes are checked"
    RESERVING = "rank 0's node looks for a port"
    LIVE = "ranks may live"
    BETWEEN = "no rank lives; another attempt may follow"
    PARTING = "no rank lives; agents are leaving"


class Outcome(enum.Enum):
    """How a stage ended."""

    CLAIMED = "an attempt is ours"
    FORMED = "a world is formed: the nodes that train are here, and fit"
    PORT_HELD = "rank 0's node holds a port"
    IN_VAIN = "it came to no rank: agents do not come, a node was lost, no port"
    RANKS_GONE = "no rank of the attempt lives"
    AGAIN = "another attempt follows"
    RUN_OVER = "the run, or its part in this job, is over"


NEXT: dict[RunStage, dict[Outcome, RunStage]] = {
    RunStage.CLAIMING: {Outcome.CLAIMED: RunStage.MUSTERING, Outcome.RUN_OVER: RunStage.PARTING},
    RunStage.MUSTERING: {
        Outcome.FORMED: RunStage.RESERVING,
        Outcome.IN_VAIN: RunStage.BETWEEN,
        Outcome.RUN_OVER: RunStage.PARTING,
    },
    RunStage.RESERVING: {
        Outcome.PORT_HELD: RunStage.LIVE,
        Outcome.IN_VAIN: RunStage.BETWEEN,
        Outcome.RUN_OVER: RunStage.PARTING,
    },
    RunStage.LIVE: {Outcome.RANKS_GONE: RunStage.BETWEEN},
    RunStage.BETWEEN: {Outcome.AGAIN: RunStage.CLAIMING, Outcome.RUN_OVER: RunStage.PARTING},
    RunStage.PARTING: {},
}
"""Agents and the launcher that are gone, or a limit, end PARTING, and with it the run."""


class Lifecycle:
    """One run's way through its stages; what is to be done goes to ``actions``."""

    def __init__(
        self,
        orders: Orders,
        timeouts: Timeouts,
        membership: Membership,
        state_keeper: RunStateKeeper,
        actions: list[CoordinatorAction],
        collaborators: Collaborators,
    ) -> None:
        self.stage = RunStage.CLAIMING
        self.epoch = -1
        self.live: LiveAttempt | None = None
        self.watching: HangMonitor | None = None
        self._watch, self._orders, self._timeouts = collaborators.watch, orders, timeouts
        self._membership, self._state_keeper, self._actions = membership, state_keeper, actions
        self._judge = RestartPolicy(orders)
        self._shutdown = Shutdown(orders, collaborators.job_id, membership, state_keeper, actions, self)
        self.termination = self._shutdown.termination
        self.formation = WorldFormation(
            orders, timeouts, membership, state_keeper, collaborators, actions, self._launch, self
        )
        follows = (self._again, self.conclude)
        lost_nodes = self.formation.lost_nodes
        self._restart = Restart(self._judge, state_keeper, lost_nodes, self.termination, actions, *follows)
        self._overdue_at: float | None = None
        self._limit_at: float | None = None
        self._launcher_words = ""

    @property
    def superseded(self) -> bool:
        """Another coordinator took over."""
        return self._judge.superseded

    def _end_stage(self, outcome: Outcome) -> None:
        self.stage = NEXT[self.stage][outcome]

    # --- time ---

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        if self.stage is RunStage.PARTING:
            return self._shutdown.wakes_at()
        parts = (self.formation, self._restart, self.termination, self.live, self.watching)
        times = [self._overdue_at, self._limit_at, *(part.wakes_at() for part in parts if part)]
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: Now) -> None:
        """Carry out what is due."""
        if self.stage is RunStage.PARTING:
            self._shutdown.tick(now)
            return
        self.termination.tick(now)
        self._limit(now)
        self._go_on(now)

    def _limit(self, now: Now) -> None:
        if self._limit_at is not None and now.steady >= self._limit_at:
            self._limit_at = None
            words = f"the time limit of {self._orders.time_limit:g} s was reached"
            self.ask(now, RunOutcome(State.TIMEOUT, words, 1))

    def _go_on(self, now: Now) -> None:
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            name = self._membership.world[0].name
            self._not_reserved(now, f"{name} named no port within {RESERVE_SECONDS:g} s", name)
        self.formation.tick(now)
        self._restart.tick(now)
        if self.live is not None:
            self.live.tick(now)
        if self.watching is not None:
            self.watching.tick(now)

    # --- towards training ---

    def begin(self, now: Now) -> None:
        """The first event of all."""
        self._limit_at = now.steady + self._orders.time_limit if self._orders.time_limit > 0 else None
        self._actions.append(ClaimEpoch())

    def claimed(self, now: Now, event: EpochClaimed) -> None:
        """An attempt is ours: launch agents for the first one, see who is left for a later one."""
        if self.stage is not RunStage.CLAIMING:
            return
        first, self.epoch = self.epoch < 0, event.epoch
        self._end_stage(Outcome.CLAIMED)
        if not first:
            restart = self._restart
            self._state_keeper.open(now, event.epoch, restart.why, restart.cause, self._membership.names())
            self.formation.begin_again(now, event.epoch, self._shutdown.farewells.launcher_lives)
            return
        self._state_keeper.remember(event.earlier, event.excluded)
        self._judge.trained = any(attempt.nodes for attempt in event.earlier)
        self._state_keeper.open(now, event.epoch, in_words(event), event.cause)
        if end := self.termination.begin(now):
            self.conclude(now, end)
        else:
            self.formation.begin(now, event)

    def not_claimed(self, now: Now, event: ClaimFailed) -> None:
        """The file system takes no attempt: the failure of the one before stays the reason, with this one."""
        if self.stage is not RunStage.CLAIMING:
            return
        last = self._state_keeper.attempts[-1].failure if self._state_keeper.attempts else None
        words = f"{last.why}; {event.why}" if last else event.why
        self.conclude(now, RunOutcome(State.FAILED, words, 1))

    def _launch(self, without: tuple[str, ...]) -> None:
        self._shutdown.farewells.launcher_lives = True
        self._launcher_words = ""
        self._actions.append(LaunchAgents(without))

    def mustered(self, now: Now) -> None:
        """The world is formed."""
        self._end_stage(Outcome.FORMED)
        self._overdue_at = now.steady + RESERVE_SECONDS
        self._actions.append(Send(self._membership.world[0].link, ReservePort(self.epoch)))

    def port_reserved(self, now: Now, member: Member, message: PortReserved) -> None:
        """Rank 0's node holds a port: start everywhere."""
        if self.stage is not RunStage.RESERVING or member.place != 0:
            return
        if not message.port:
            self._not_reserved(now, f"{member.name} could not reserve a port: {message.why}", member.name)
            return
        self._end_stage(Outcome.PORT_HELD)
        self._overdue_at = None
        parts = (self._orders, self._timeouts, self._membership, self._state_keeper, self._judge)
        self.live = LiveAttempt(self.epoch, *parts, self._actions, self._over, self.formation.environment)
        self.live.start(now, Meeting(member.hello.address, message.port))
        if self._watch is not None:
            detector = self._watch(self._orders, self.epoch, self._membership.numbers(), now.steady, now.wall)
            self.watching = HangMonitor(
                detector, self.live, self._membership, self._state_keeper, self._actions, self.ask
            )

    def _not_reserved(self, now: Now, words: str, node: str) -> None:
        self.in_vain(now, failures.of_node(FailureKind.START, node, now.wall, words))

    # --- what goes wrong, and who wants an end ---

    def lost(self, now: Now, member: Member, why: str) -> None:
        """An agent will not be heard again; ``member`` has left the membership already."""
        words = f"{member.name} (node {member.node}) was lost: {why}{self._launcher_words}"
        failure_event = failures.of_node(FailureKind.NODE, member.name, member.heard_wall, words)
        if self.stage is RunStage.PARTING:
            self._shutdown.farewells.check(now)
        elif self.stage is RunStage.MUSTERING:
            self.formation.lost(now, member, why, failure_event)
        elif member.place < 0:
            self._state_keeper.warn(f"the idle node {member.name} was lost: {why}")
        elif self.live is not None:
            if self.watching is not None:
                self.watching.lost(now, member, why)
            self.live.lost(now, member, failure_event)
        elif self.stage is RunStage.RESERVING:
            self.in_vain(now, failure_event)
        else:
            self._actions.append(Note(words))

    def launcher_ended(self, now: Now, event: LauncherEnded) -> None:
        """Fatal only where agents are still on their way; else they tell by themselves whether they live."""
        said = f": {' / '.join(event.said)}" if event.said else ""
        words = f"the launcher ended with code {event.code}{said}"
        if event.whole:
            self._shutdown.farewells.launcher_lives = event.others
        joining = self.formation.joining
        self.formation.launcher_ended(now, event, words)
        if event.whole and self.stage is RunStage.PARTING:
            self._shutdown.farewells.check(now)
        elif event.whole and event.others:
            self._actions.append(Note(words))
        elif event.whole and not joining:
            self._launcher_words = f"; {words}"
            self._actions.append(Note(words))
            if self.live is not None:
                self.live.launcher_ended(now, words)

    def ask(self, now: Now, wish: RunOutcome, at: float | None = None) -> None:
        """Somebody wants the run to end, since ``at``; the first to ask is the one who is reported."""
        began = self.live.failure_event_at if self.live else self._restart.failure_event_at
        since = None if began is None else (now.steady if at is None else at) - began
        if self.stage is RunStage.PARTING or not self._judge.ask(wish, since):
            return
        if self.live is not None:
            self.live.stop(now)
        elif not self._restart.weighs:
            self.conclude(now, wish)

    def notify(self, now: Now, why: str, until: float) -> bool:
        """The ranks are to end by themselves; False where none run."""
        return self.live is not None and self.live.notice(now, why, until)

    def decided(self, now: Now) -> None:
        """What a signal meant is known."""
        self._restart.decided(now)

    def supersede(self, now: Now, epoch: int) -> None:
        """Another coordinator took over."""
        if self.superseded:
            return
        self._judge.superseded = True
        self._actions.append(
            Note(f"attempt {epoch} of another coordinator stands in the run directory: ending")
        )
        if self.live is not None:
            self.live.stop(now)
        elif self.stage is not RunStage.PARTING and not self._restart.weighs:
            self.conclude(now, SUPERSEDED)

    # --- towards another attempt, or the end ---

    def _over(self, now: Now) -> None:
        """No rank of this epoch lives anywhere but what is stuck."""
        if self.live is None:
            return
        live, watching = self.live, self.watching
        if watching is not None:
            watching.over(now, live.outcomes.completed)
        self.live = self.watching = None
        self._end_stage(Outcome.RANKS_GONE)
        self._restart.over(now, live.outcomes, live.failure_event_at)

    def progressed(self, now: Now, event: Progressed) -> None:
        """How far ranks have come; what follows their end depends on it."""
        if event.epoch == self.epoch and self.stage in (RunStage.LIVE, RunStage.BETWEEN):
            self._restart.progressed(now, event)

    def in_vain(self, now: Now, failure_event: FailureEvent) -> None:
        """It came to no rank."""
        self._end_stage(Outcome.IN_VAIN)
        self._overdue_at = None
        self._restart.failure_event(now, failure_event, failures.of_failure_event(failure_event))

    def another(self, now: Now, failure_event: FailureEvent) -> bool:
        """Too few nodes are fit, for one was lost: another attempt is made, if there may be one."""
        if not self._restart.may_follow(failure_event):
            return False
        self.in_vain(now, failure_event)
        return True

    def _again(self, now: Now) -> None:
        self._end_stage(Outcome.AGAIN)
        self._actions.append(ClaimEpoch(self.epoch))

    def conclude(self, now: Now, end: RunOutcome, failure_event: FailureEvent | None = None) -> None:
        """No rank lives anywhere and the run is over; also where too few nodes are fit."""
        if self.termination.undecided and not self.superseded and end is not self._judge.asked:
            return  # it may come from what the signal is about, which ends the run anyway
        self._end_stage(Outcome.RUN_OVER)
        self._overdue_at = self._limit_at = None
        self.formation.end()
        self._restart.end()
        self._shutdown.begin(now, end, failure_event, self.superseded)
