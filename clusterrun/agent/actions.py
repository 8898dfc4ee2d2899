"""What the agent orders to be done; values only, carried out in the order in which they come.

``StartRanks`` and ``AskSidecar`` of the coordinator are passed on as they came, when they may be carried out.
"""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from clusterrun.protocol.messages import AskSidecar, StartRanks, ToCoordinator


@frozen
class Tell:
    """Send ``message`` to the coordinator."""

    message: ToCoordinator


@frozen
class HoldPort:
    """Bind a free port (and keep it bound, not listening) for ``epoch``."""

    epoch: int


@frozen
class ReleasePort:
    """Give the held port back."""


@frozen
class Accompany:
    """Start a sidecar process beside the ranks that were just started, and name them to it."""

    epoch: int
    sidecar: str


@frozen
class Dismiss:
    """Kill a sidecar and all below it; nothing follows."""

    sidecar: str


@frozen
class SignalLocal:
    """Send signal ``number`` to the rank processes themselves (with a CONT after a TERM)."""

    number: int


@frozen
class Sweep:
    """Kill everything of ``epoch`` *and of every older one* that lives here, sidecars too.

    Ends in ``Swept`` within seconds, come what may; the ends of ranks come before it.
    """

    epoch: int


@frozen
class RenewLease:
    """Tell the shim that this node may live until ``until`` (this machine's steady clock)."""

    until: float


@frozen
class Exit:
    """The agent is done: exit with ``code`` (nothing of any epoch is left, or the shim sweeps it)."""

    code: int


if TYPE_CHECKING:
    AgentAction = Union[
        Tell,
        HoldPort,
        ReleasePort,
        StartRanks,
        AskSidecar,
        Accompany,
        Dismiss,
        SignalLocal,
        Sweep,
        RenewLease,
        Note,
        Exit,
    ]
