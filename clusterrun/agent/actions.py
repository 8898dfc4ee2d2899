"""The actions of the agent's state machine. Values only.

The coordinator's orders to reserve a port, to start or signal ranks, and to ask or end a sidecar are passed
on unchanged, as soon as they are allowed.
"""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.protocol.messages import ToCoordinator
from clusterrun.runtime.machine_events import Action


@frozen
class Tell(Action):
    """Send ``message`` to the coordinator."""

    message: ToCoordinator


@frozen
class TerminateRanks(Action):
    """Send TERM and CONT to the rank processes of ``epoch``."""

    epoch: int
    # only to the processes that the last TERM did not reach: they had no handler for it.
    only_unreached: bool = False


@frozen
class ReleasePort(Action):
    """Release the reserved port."""


@frozen
class StartSidecar(Action):
    """Start a sidecar process next to the ranks that were just started, and send it their process ids."""

    epoch: int
    sidecar: str


@frozen
class AwaitLeftovers(Action):
    """Report ``LeftoversEnded`` once no process lives that the ranks of ``epoch`` left."""

    epoch: int
    filters_only: bool  # wait only for processes that read a pipe. They pass on what a rank has printed.


@frozen
class EndLeftovers(Action):
    """Send TERM to the processes that the ranks of ``epoch`` left.

    Filters get none: they end when the processes end whose output they read.
    """

    epoch: int


@frozen
class Sweep(Action):
    """Kill all processes of ``epoch`` *and of every older epoch* on this node, sidecars too.

    ``RanksGone`` follows within seconds in every case, after the ends of the ranks.
    """

    epoch: int


@frozen
class RenewLease(Action):
    """Tell the shim that this node may live until ``until`` (this machine's steady clock)."""

    until: float


@frozen
class Exit(Action):
    """Exit with ``code``. No process of any epoch is left, or the shim sweeps it."""

    code: int
