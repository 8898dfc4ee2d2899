"""The port that this node holds for rank 0 of an epoch until ranks need it; knows no socket."""

from __future__ import annotations

from clusterrun.agent.actions import HoldPort, ReleasePort, Tell
from clusterrun.protocol.messages import PortReserved
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.agent.actions import AgentAction
    from clusterrun.agent.events import PortHeld
    from clusterrun.agent.ranks import Ranks
    from clusterrun.protocol.messages import ReservePort


class MasterPort:
    """``epoch`` is that of the port which is held, None where none is."""

    def __init__(self, ranks: Ranks, actions: list[AgentAction]) -> None:
        self.epoch: int | None = None
        self._ranks = ranks
        self._actions = actions

    def reserve(self, order: ReservePort) -> None:
        """Hold one for an epoch that is above all epochs seen."""
        if order.epoch <= self._ranks.seen:
            self._actions.append(
                Note(f"refused a port for epoch {order.epoch}: epoch {self._ranks.seen} was seen")
            )
            return
        if order.epoch == self.epoch:
            return
        self.release()
        self.epoch = order.epoch
        self._actions.append(HoldPort(order.epoch))

    def held(self, event: PortHeld) -> None:
        """It is held, or cannot be."""
        if event.epoch == self.epoch:
            self._actions.append(Tell(PortReserved(event.epoch, event.port, event.why)))

    def release(self) -> None:
        """Give it back, where one is held."""
        if self.epoch is not None:
            self.epoch = None
            self._actions.append(ReleasePort())

    def release_after_ranks(self) -> None:
        """Its epoch is over."""
        if self._ranks.idle and self.epoch is not None and self.epoch <= self._ranks.epoch:
            self.release()
