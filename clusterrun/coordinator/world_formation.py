"""Forms the world of the next attempt: agents gathered, checked by the pre-flight, chosen; pure.

It is begun once, and again before each later attempt with whoever is left: agents are launched once
more only where too few of them are there, or what launched them is gone.
"""

from __future__ import annotations

import enum

from clusterrun.coordinator import failures
from clusterrun.coordinator.failures import FailureKind
from clusterrun.coordinator.lost_nodes import LostNodes
from clusterrun.coordinator.preflight_gate import PreflightGate
from clusterrun.coordinator.rendezvous import Rendezvous, RendezvousMeans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.collaborators import Collaborators
    from clusterrun.coordinator.events import EpochClaimed, LauncherEnded, LauncherReached
    from clusterrun.coordinator.failures import FailureEvent, RunOutcome
    from clusterrun.coordinator.membership import Member, Membership
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.protocol.timeouts import Timeouts
    from clusterrun.runtime.machine_events import Now

    class Follows(Protocol):
        """What a formation leads to: one of these is called once for each ``begin``."""

        def mustered(self, now: Now) -> None: ...
        def in_vain(self, now: Now, failure_event: FailureEvent) -> None: ...
        def conclude(self, now: Now, end: RunOutcome) -> None: ...
        def another(self, now: Now, failure_event: FailureEvent) -> bool: ...


class FormationStage(enum.Enum):
    """How far it is."""

    IDLE = "nothing is to be done"
    JOINING = "agents are on their way"
    EXAMINING = "the nodes are checked, or, too few being fit, another job is queued"


class WorldFormation:
    """Calls ``mustered`` when the membership's world is formed, ``in_vain`` where agents do not come.

    ``conclude`` ends the run: too few are fit. ``launch`` starts agents but on the nodes of these names.
    ``environment`` is for ranks where their user set nothing.
    """

    def __init__(
        self,
        orders: Orders,
        timeouts: Timeouts,
        membership: Membership,
        state_keeper: RunStateKeeper,
        collaborators: Collaborators,
        actions: list[CoordinatorAction],
        launch: Callable[[tuple[str, ...]], None],
        follows: Follows,
    ) -> None:
        self.stage = FormationStage.IDLE
        self.environment: tuple[tuple[str, str], ...] = ()
        self.lost_nodes = LostNodes(membership, state_keeper, orders.nodes, local=not orders.launch)
        self._membership, self._state_keeper, self._follows = membership, state_keeper, follows
        self._nodes = orders.nodes
        # Another job gets nodes that are well: what did not come back once is not tried again and again.
        self._elsewhere = bool(orders.survival.requeue)
        self._epoch = -1
        self._lost: FailureEvent | None = None
        parts = (orders, membership, state_keeper, actions)
        then = (self._form, self._refused, follows.another)
        self._gate = PreflightGate(*parts, collaborators.examine, *then) if collaborators.examine else None
        means = RendezvousMeans(do_without=self._gate is not None, relaunch=bool(orders.launch))
        self._rendezvous = Rendezvous(
            membership, state_keeper, timeouts, means, actions, launch, self._gathered, self._not_gathered
        )

    # --- time ---

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        if self.stage is FormationStage.JOINING:
            return self._rendezvous.due_at()
        return self.preflight_session.wakes_at() if self.preflight_session else None

    def tick(self, now: Now) -> None:
        """Carry out what is due."""
        if self.stage is FormationStage.JOINING:
            self._rendezvous.tick(now)
        elif self.preflight_session:
            self.preflight_session.tick(now)

    @property
    def joining(self) -> bool:
        """Agents are on their way."""
        return self.stage is FormationStage.JOINING

    @property
    def launched_again(self) -> bool:
        """Agents are on their way, and others were ended for that: some of those may still come."""
        return self.joining and self._rendezvous.ended_others

    @property
    def preflight_session(self) -> PreflightGate | None:
        """The pre-flight that is going on."""
        return self._gate if self.stage is FormationStage.EXAMINING else None

    # --- agents ---

    def begin(self, now: Now, event: EpochClaimed) -> None:
        """For the first attempt of this coordinator: launch agents."""
        self.stage, self._epoch = FormationStage.JOINING, event.epoch
        without = self.lost_nodes.before(event.there)
        self._rendezvous.begin(now, event.quiet, event.dead_since, without)

    def begin_again(self, now: Now, epoch: int, launcher_lives: bool) -> None:
        """For a later attempt."""
        self._epoch = epoch
        if launcher_lives and self.lost_nodes.enough and now.steady >= self._rendezvous.quiet_until:
            self._select(now)
            return
        self.stage = FormationStage.JOINING
        self._lost = None
        without = self.lost_nodes.without(launcher_lives)
        self._rendezvous.begin_again(now, without, self.lost_nodes.hoped, self._nodes, launcher_lives)

    def end(self) -> None:
        """The run ends."""
        self.stage = FormationStage.IDLE

    def welcomes(self, node: int) -> bool:
        """An agent of this node is waited for."""
        return self.stage is FormationStage.JOINING and self._rendezvous.welcomes(node)

    def present(self, now: Now) -> None:
        """One node more is present."""
        if self.stage is FormationStage.JOINING:
            self._rendezvous.present(now)

    def launcher_ended(self, now: Now, event: LauncherEnded, words: str) -> None:
        """``words`` say so."""
        self.lost_nodes.said(event.said)
        if self.stage is FormationStage.JOINING:
            self._rendezvous.launcher_ended(now, event, words)

    def launcher_reached(self, now: Now, event: LauncherReached) -> None:
        """What came of a look at the launcher."""
        if self.stage is FormationStage.JOINING:
            self._rendezvous.launcher_reached(now, event.names, event.settled)

    def lost(self, now: Now, member: Member, why: str, failure_event: FailureEvent) -> None:
        """An agent will not be heard again."""
        if self.preflight_session:
            self.preflight_session.left(now, member, failure_event)
        elif self._rendezvous.does_without:
            self._lost = self._lost or failure_event
            self._rendezvous.left(member, why)
        else:
            self._in_vain(now, failure_event)

    def _not_gathered(self, now: Now, kind: FailureKind, node: str, words: str) -> None:
        if node and self._elsewhere:
            self.lost_nodes.leave_out(node, words)
        self._in_vain(now, failures.of_node(kind, node, now.wall, words))

    def _in_vain(self, now: Now, failure_event: FailureEvent) -> None:
        self.stage = FormationStage.IDLE
        self._follows.in_vain(now, failure_event)

    # --- who trains ---

    def _gathered(self, now: Now) -> None:
        """Everybody is here who is waited for, and nothing of an older attempt can live any more."""
        lost = self._lost if self._rendezvous.lost_some else None
        if lost and not self.lost_nodes.enough and self._follows.another(now, lost):
            self.stage = FormationStage.IDLE
            return
        self._select(now, self._rendezvous.absent(now))

    def _select(self, now: Now, missing: Sequence[tuple[int, str, str]] = ()) -> None:
        """``missing`` were waited for in vain."""
        suspects = self.lost_nodes.suspects()
        if self._gate is None or (self._gate.examined and not suspects.nodes):
            self._form(now, self.lost_nodes.world(), self.environment)
            return
        self.stage = FormationStage.EXAMINING
        self._gate.begin(now, self._epoch, self.lost_nodes.absent(missing), suspects)

    def _form(self, now: Now, world: Sequence[int], environment: tuple[tuple[str, str], ...]) -> None:
        self.stage = FormationStage.IDLE
        self._membership.form(world)
        self.environment = environment
        spares = [
            member.name
            for member in self._membership.idle()
            if member.name not in self._state_keeper.excluded
        ]
        self._state_keeper.formed(self._membership.names(), tuple(spares))
        if (
            any(member.lost for member in self._membership.world)
            or len(self._membership.world) != self._nodes
        ):
            self._not_gathered(now, FailureKind.NODE, "", "a node was lost while the world was formed")
            return
        self.lost_nodes.trained()
        self._follows.mustered(now)

    def _refused(self, now: Now, end: RunOutcome) -> None:
        self.stage = FormationStage.IDLE
        self._follows.conclude(now, end)
