"""What can happen to an agent: events go in, with a reading of the clocks; values only.

What came of an order, or of a sidecar, is the message that says so to the coordinator.
"""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.runtime.machine_events import SignalCame, StoodStill, Tick

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from clusterrun.protocol.messages import (
        PortReserved,
        RanksStarted,
        SidecarEnded,
        SidecarSaid,
        SignalTaken,
        StartFailed,
        ToAgent,
    )


@frozen
class Welcomed:
    """The handshake succeeded; the lease counts from ``Now`` until the first acknowledged beat."""


@frozen
class Told:
    """The coordinator sent ``message``."""

    message: ToAgent


@frozen
class Disconnected:
    """The connection to the coordinator is gone."""

    why: str


@frozen
class RankEnded:
    """A rank process was reaped; the words of its end are read by the shell."""

    epoch: int
    rank: int
    code: int
    last_lines: tuple[str, ...] = ()
    traceback: str = ""
    collision: bool = False
    noticed: bool = False


@frozen
class Swept:
    """After ``Sweep``: nothing of ``epoch`` is left but ``stuck``."""

    epoch: int
    stuck: tuple[str, ...] = ()


@frozen
class ShimLost:
    """The shim is gone: nobody enforces this node's lease any more."""


if TYPE_CHECKING:
    AgentEvent = Union[
        Tick,
        Welcomed,
        Told,
        Disconnected,
        SignalCame,
        RankEnded,
        SignalTaken,
        RanksStarted,
        StartFailed,
        PortReserved,
        Swept,
        SidecarSaid,
        SidecarEnded,
        ShimLost,
        StoodStill,
    ]
