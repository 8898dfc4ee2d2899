"""What the parts of a coordinator have in common; pure."""

from __future__ import annotations

from clusterrun.coordinator.membership import Membership
from clusterrun.coordinator.run_state import RunStateKeeper
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Orders
from clusterrun.runtime.machine_events import Action


@frozen
class Shared:
    """The orders, the members and the record of one run; what is to be done goes to ``actions``."""

    orders: Orders
    membership: Membership
    state_keeper: RunStateKeeper
    actions: list[Action]


class RunPart:
    """A part of the coordinator. It calls no other part but those that it was given."""

    def __init__(self, shared: Shared) -> None:
        self._orders, self._membership = shared.orders, shared.membership
        self._state_keeper, self._actions = shared.state_keeper, shared.actions
