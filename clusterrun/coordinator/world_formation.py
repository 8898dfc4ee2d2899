"""Forms the world of the next attempt: agents gathered, checked by the pre-flight, chosen; pure.

It is begun once, and again before each later attempt with whoever is left: agents are launched once
more only where too few of them are there, or what launched them is gone.
"""

from __future__ import annotations

import enum

from clusterrun.coordinator import failures
from clusterrun.coordinator.failures import FailureKind
from clusterrun.coordinator.lost_nodes import LostNodes
from clusterrun.coordinator.outcomes import (
    Gathered,
    NodesChosen,
    NoRanks,
    NotGathered,
    RunOver,
    TooFewNodes,
    WorldFormed,
)
from clusterrun.coordinator.preflight_gate import PreflightGate
from clusterrun.coordinator.rendezvous import Rendezvous, RendezvousMeans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Union

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.events import EpochClaimed, LauncherEnded, LauncherReached, Resubmitted
    from clusterrun.coordinator.failures import FailureEvent
    from clusterrun.coordinator.launch_state import LaunchState
    from clusterrun.coordinator.membership import Member, Membership
    from clusterrun.coordinator.preflight_gate import Consequence, Examine
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.protocol.messages import SidecarSaid
    from clusterrun.runtime.machine_events import Now

    Formed = Union[WorldFormed, NoRanks, RunOver, TooFewNodes, None]


class FormationStage(enum.Enum):
    """How far it is."""

    IDLE = "nothing is to be done"
    JOINING = "agents are on their way"
    EXAMINING = "the nodes are checked, or, too few being fit, another job is queued"


class WorldFormation:
    """Each ``begin`` leads to one outcome: the membership's world is formed, or there is none.

    ``TooFewNodes`` is followed by ``form_without`` where it leads to no other attempt. ``environment`` is for
    ranks where their user set nothing.
    """

    def __init__(
        self,
        orders: Orders,
        membership: Membership,
        state_keeper: RunStateKeeper,
        launch: LaunchState,
        actions: list[CoordinatorAction],
        examine: Examine | None,
    ) -> None:
        self.stage = FormationStage.IDLE
        self.environment: tuple[tuple[str, str], ...] = ()
        self.lost_nodes = LostNodes(membership, state_keeper, orders.nodes, local=not orders.launch)
        self._membership, self._state_keeper, self._launch = membership, state_keeper, launch
        self._nodes = orders.nodes
        # Another job gets nodes that are well: what did not come back once is not tried again and again.
        self._elsewhere = bool(orders.survival.requeue)
        self._epoch = -1
        self._lost: FailureEvent | None = None
        parts = (orders, membership, state_keeper, actions)
        self._gate = PreflightGate(*parts, examine) if examine else None
        means = RendezvousMeans(do_without=self._gate is not None, relaunch=bool(orders.launch))
        self._rendezvous = Rendezvous(membership, state_keeper, means, launch, actions)

    # --- time ---

    def wakes_at(self) -> float | None:
        if self.stage is FormationStage.JOINING:
            return self._rendezvous.due_at()
        return self._checks.wakes_at() if self._checks else None

    def tick(self, now: Now) -> Formed:
        if self.stage is FormationStage.JOINING:
            return self._met(now, self._rendezvous.tick(now))
        return self._checked(now, self._checks.tick(now)) if self._checks else None

    @property
    def joining(self) -> bool:
        """Agents are on their way."""
        return self.stage is FormationStage.JOINING

    @property
    def launched_again(self) -> bool:
        """Agents are on their way, and others were ended for that: some of those may still come."""
        return self.joining and self._rendezvous.ended_others

    @property
    def _checks(self) -> PreflightGate | None:
        return self._gate if self.stage is FormationStage.EXAMINING else None

    # --- agents ---

    def begin(self, now: Now, event: EpochClaimed) -> None:
        """For the first attempt of this coordinator: launch agents."""
        self.stage, self._epoch = FormationStage.JOINING, event.epoch
        without = self.lost_nodes.before(event.there)
        self._rendezvous.begin(now, event.quiet, event.dead_since, without)

    def begin_again(self, now: Now, epoch: int) -> Formed:
        self._epoch = epoch
        lives = self._launch.lives
        if lives and self.lost_nodes.enough and now.steady >= self._rendezvous.quiet_until:
            return self._select(now)
        self.stage = FormationStage.JOINING
        self._lost = None
        without = self.lost_nodes.without(lives)
        return self._met(now, self._rendezvous.begin_again(now, without, self.lost_nodes.hoped, self._nodes))

    def end(self) -> None:
        """No world is formed any more, or none for now."""
        self.stage = FormationStage.IDLE

    def welcomes(self, node: int) -> bool:
        """An agent of this node is waited for."""
        return self.stage is FormationStage.JOINING and self._rendezvous.welcomes(node)

    def present(self, now: Now) -> Formed:
        return self._met(now, self._rendezvous.present(now)) if self.joining else None

    def launcher_ended(self, now: Now, event: LauncherEnded, words: str) -> Formed:
        """``words`` say so."""
        self.lost_nodes.said(event.said)
        return self._met(now, self._rendezvous.launcher_ended(now, event, words)) if self.joining else None

    def launcher_reached(self, now: Now, event: LauncherReached) -> None:
        """What came of a look at the launcher."""
        if self.stage is FormationStage.JOINING:
            self._rendezvous.launcher_reached(now, event.names, event.settled)

    def lost(self, now: Now, member: Member, why: str, failure_event: FailureEvent) -> Formed:
        if self._checks:
            return self._checked(now, self._checks.left(now, member, failure_event))
        if not self._rendezvous.does_without:
            return NoRanks(failure_event)
        self._lost = self._lost or failure_event
        self._rendezvous.left(member, why)
        return None

    def worker_said(self, now: Now, member: Member, message: SidecarSaid) -> Formed:
        return self._checked(now, self._checks.said(now, member, message)) if self._checks else None

    def worker_lost(self, now: Now, member: Member, why: str) -> Formed:
        return self._checked(now, self._checks.lost(now, member, why)) if self._checks else None

    def resubmitted(self, now: Now, event: Resubmitted) -> Formed:
        """The run was queued anew, or could not be."""
        return self._checked(now, self._checks.resubmitted(event)) if self._checks else None

    def _met(self, now: Now, outcome: Gathered | NotGathered | None) -> Formed:
        if isinstance(outcome, NotGathered):
            return self._not_gathered(now, outcome)
        if outcome is None:
            return None
        lost = self._lost if self._rendezvous.lost_some else None
        if lost and not self.lost_nodes.enough:
            return TooFewNodes(lost)
        return self._select(now, self._rendezvous.absent(now))

    def _not_gathered(self, now: Now, outcome: NotGathered) -> Formed:
        if outcome.node and self._elsewhere:
            self.lost_nodes.leave_out(outcome.node, outcome.why)
        return NoRanks(failures.of_node(outcome.kind, outcome.node, now.wall, outcome.why))

    def _checked(self, now: Now, outcome: Consequence) -> Formed:
        if isinstance(outcome, NodesChosen):
            return self._form(now, outcome.world, outcome.environment)
        if isinstance(outcome, RunOver):
            self.stage = FormationStage.IDLE
        return outcome

    # --- who trains ---

    def form_without(self, now: Now) -> Formed:
        """Too few nodes are here, or fit, and no other attempt is made for that."""
        if self._checks:
            return self._checked(now, self._checks.decide(now))
        return self._select(now, self._rendezvous.absent(now))

    def _select(self, now: Now, missing: Sequence[tuple[int, str, str]] = ()) -> Formed:
        """``missing`` were waited for in vain."""
        suspects = self.lost_nodes.suspects()
        if self._gate is None or (self._gate.examined and not suspects.nodes):
            return self._form(now, self.lost_nodes.world(), self.environment)
        self.stage = FormationStage.EXAMINING
        absent = self.lost_nodes.absent(missing)
        return self._checked(now, self._gate.begin(now, self._epoch, absent, suspects))

    def _form(self, now: Now, world: Sequence[int], environment: tuple[tuple[str, str], ...]) -> Formed:
        self.stage = FormationStage.IDLE
        self._membership.form(world)
        self.environment = environment
        spares = [
            member.name
            for member in self._membership.idle()
            if member.name not in self._state_keeper.state.excluded
        ]
        self._state_keeper.formed(self._membership.names(), tuple(spares))
        if (
            any(member.lost for member in self._membership.world)
            or len(self._membership.world) != self._nodes
        ):
            words = "a node was lost while the world was formed"
            return self._not_gathered(now, NotGathered(FailureKind.NODE, "", words))
        self.lost_nodes.trained()
        return WorldFormed()
