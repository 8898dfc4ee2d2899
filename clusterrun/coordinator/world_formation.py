"""Form the world of the next attempt: gather agents, run the pre-flight, select nodes; pure.

This happens at the start of the run, and before each later attempt with the remaining agents. Agents are
launched again only if too few of them are present, or if their launcher has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.coordinator.events import EpochClaimed, LauncherEnded, LauncherReached, Resubmitted
from clusterrun.coordinator.failures import FailureEvent, FailureKind
from clusterrun.coordinator.lost_nodes import LostNodes
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.preflight_gate import PreflightGate
from clusterrun.coordinator.rendezvous import Rendezvous
from clusterrun.coordinator.run_part import (
    Gathered,
    NodesChosen,
    NoRanks,
    Outcome,
    RunOver,
    RunPart,
    Shared,
    TooFewNodes,
    WorldFormed,
    no_ranks,
)
from clusterrun.protocol.messages import SidecarEnded, SidecarSaid
from clusterrun.runtime.machine_events import Now
from clusterrun.slurm_text.srun_messages import lacks_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.preflight.session.session import Session


class WorldFormation(RunPart):
    """Each ``begin`` leads to one outcome: the membership's world is formed, or there is none.

    After ``TooFewNodes`` the caller calls ``form_without`` if no other attempt follows. ``environment`` has
    variables for the ranks. The user's own variables take precedence.
    """

    def __init__(self, shared: Shared, make_session: Callable[..., Session] | None) -> None:
        super().__init__(shared)
        self.environment: tuple[tuple[str, str], ...] = ()
        self.lost_nodes = LostNodes(shared)
        # With --requeue another job gets healthy nodes, so a node that is absent once is excluded.
        self._requeues = bool(self._orders.survival.requeue)
        self._lost: FailureEvent | None = None
        self._gate = PreflightGate(shared, make_session) if make_session else None
        self._rendezvous = Rendezvous(shared, does_without=self._gate is not None)
        self._active: Rendezvous | PreflightGate | None = None

    def wakes_at(self) -> float | None:
        return self._active.wakes_at() if self._active else None

    def tick(self, now: Now) -> Outcome | None:
        return self._follow(now, self._active.tick(now)) if self._active else None

    @property
    def joining(self) -> bool:
        """Return whether agents are gathered now."""
        return self._active is self._rendezvous

    @property
    def launched_again(self) -> bool:
        """Return whether agents were ended for the current launch. Some of those may still send messages."""
        return self.joining and self._rendezvous.ended_others

    @property
    def checks(self) -> PreflightGate | None:
        """Return the gate while nodes are checked, or while another job is queued because too few are fit."""
        return self._gate if self._active is self._gate else None

    def begin(self, now: Now, event: EpochClaimed) -> None:
        """Gather the agents of the first attempt of this coordinator."""
        self._active = self._rendezvous
        without = self.lost_nodes.before(event.nodes)
        self._rendezvous.begin(now, event.quiet, event.dead_since, without, event.lease)

    def begin_again(self, now: Now) -> Outcome | None:
        """Form the world of a later attempt, at once if enough agents are present."""
        lives = self._membership.launcher_lives
        if lives and self.lost_nodes.enough and now.steady >= self._rendezvous.quiet_until:
            return self._select(now)
        self._active = self._rendezvous
        self._lost = None
        without = self.lost_nodes.without(lives)
        return self._follow(now, self._rendezvous.begin_again(now, without, self.lost_nodes.awaited))

    def end(self) -> None:
        self._active = None

    def welcomes(self, node: int) -> bool:
        return self.joining and self._rendezvous.welcomes(node)

    def joined(self, now: Now) -> Outcome | None:
        return self._follow(now, self._rendezvous.joined(now)) if self.joining else None

    def launcher_ended(self, now: Now, event: LauncherEnded, message: str) -> Outcome | None:
        self.lost_nodes.note_launcher_output(event.output)
        return (
            self._follow(now, self._rendezvous.launcher_ended(now, event, message)) if self.joining else None
        )

    def launcher_reached(self, now: Now, event: LauncherReached) -> None:
        if self.joining:
            self._rendezvous.launcher_reached(now, event.names, event.settled)

    def overloaded(self, now: Now, node: int | None, seconds: float) -> None:
        """Handle an overload of ``node`` (None: of the coordinator's machine) in the last ``seconds``."""
        if self.checks:
            self.checks.overloaded(now, node, seconds)

    def lost(self, now: Now, member: Member, why: str, failure_event: FailureEvent) -> Outcome | None:
        """Handle the loss of an agent, which fails the attempt unless the world can be formed without it."""
        if self.checks:
            return self._follow(now, self.checks.lost(now, member, failure_event))
        if not self._rendezvous.does_without:
            return NoRanks(failure_event)
        self._lost = self._lost or failure_event
        self._rendezvous.departed[member.node] = why
        return None

    def heard(self, now: Now, member: Member, message: SidecarSaid | SidecarEnded) -> Outcome | None:
        return self._follow(now, self.checks.heard(now, member, message)) if self.checks else None

    def resubmitted(self, now: Now, event: Resubmitted) -> Outcome | None:
        return self._follow(now, self.checks.resubmitted(event)) if self.checks else None

    def _follow(self, now: Now, outcome: Outcome | None) -> Outcome | None:
        """Enter the stage that follows an outcome. Return the outcome that the caller must handle."""
        if isinstance(outcome, Gathered):
            lost = self._lost if self._rendezvous.departed else None
            if lost and not self.lost_nodes.enough:
                return TooFewNodes(lost)
            return self._select(now, self._rendezvous.absent(now))
        if isinstance(outcome, NodesChosen):
            self.environment = outcome.environment
            return self._form(now, outcome.world)
        if isinstance(outcome, RunOver):
            self._active = None
        elif isinstance(outcome, NoRanks) and (
            self._requeues or lacks_nodes(self.lost_nodes.launcher_output)
        ):
            failure, kind = outcome.failure_event.failure, outcome.failure_event.kind
            if failure.node and kind is not FailureKind.OVERLOAD:
                self.lost_nodes.leave_out(failure.node, failure.why)
        return outcome

    def form_without(self, now: Now) -> Outcome | None:
        """Continue with too few present or fit nodes, because no other attempt is made for that."""
        if self.checks:
            return self._follow(now, self.checks.decide(now))
        return self._select(now, self._rendezvous.absent(now))

    def _select(self, now: Now, missing: Sequence[tuple[int, str, str]] = ()) -> Outcome | None:
        """Check the nodes if that is due; otherwise form the world. ``missing``: nodes that did not join."""
        suspects, network = self.lost_nodes.suspects()
        if self._gate is None or (self._gate.has_report and not suspects):
            return self._form(now, self.lost_nodes.world())
        self._active = self._gate
        absent = self.lost_nodes.absent(missing)
        excused = self.lost_nodes.excused(now, self._rendezvous.began)
        return self._follow(now, self._gate.begin(now, absent, excused, suspects, network))

    def _form(self, now: Now, world: Sequence[int]) -> Outcome:
        self._active = None
        self._membership.form(world)
        idle, excluded = self._membership.idle(), self._state_keeper.state.excluded
        spares = tuple(member.name for member in idle if member.name not in excluded)
        self._state_keeper.formed(self._membership.names(), spares)
        if len(self._membership.training()) != self._orders.nodes:
            return no_ranks(now, FailureKind.NODE, "", "a node was lost while the world was formed")
        self.lost_nodes.trained()
        return WorldFormed()
