"""The events of an agent's state machine, each passed with a reading of the clocks. Values only.

The results of orders, ranks and sidecars are the messages that report them to the coordinator.
"""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.protocol.messages import ToAgent
from clusterrun.runtime.machine_events import Event


@frozen
class Welcomed(Event):
    """The handshake succeeded. The lease counts from ``Now`` until the first acknowledged beat."""


@frozen
class Told(Event):
    """The coordinator sent ``message``."""

    message: ToAgent


@frozen
class Disconnected(Event):
    why: str


@frozen
class LeftoversEnded(Event):
    """All processes that the ranks of ``epoch`` left, and that may finish, have ended."""

    epoch: int


@frozen
class ShimLost(Event):
    """The shim has ended, so no process enforces this node's lease any more."""
