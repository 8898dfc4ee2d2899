"""What can happen to an agent: events go in, with a reading of the clocks; values only."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.runtime.machine_events import SignalCame, StoodStill, Tick

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from clusterrun.protocol.messages import ToAgent


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
class RanksSpawned:
    """Every rank of ``Spawn`` was started."""

    epoch: int


@frozen
class SpawnFailed:
    """``Spawn`` failed; those already started are to be swept."""

    epoch: int
    why: str


@frozen
class PortHeld:
    """``HoldPort`` was carried out; port 0 and ``why`` where it failed."""

    epoch: int
    port: int
    why: str = ""


@frozen
class Passed:
    """``SignalLocal`` was carried out: ``ranks`` processes got the signal."""

    epoch: int
    number: int
    ranks: int


@frozen
class Swept:
    """After ``Sweep``: nothing of ``epoch`` is left but ``stuck``."""

    epoch: int
    stuck: tuple[str, ...] = ()


@frozen
class SidecarSpoke:
    """A sidecar said something; ``number`` is that of the question, 0 where nobody asked."""

    epoch: int
    sidecar: str
    number: int
    body: str


@frozen
class SidecarGone:
    """A sidecar ended, or could not be started, without a ``Dismiss`` or ``Sweep``."""

    epoch: int
    sidecar: str
    why: str


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
        Passed,
        RanksSpawned,
        SpawnFailed,
        PortHeld,
        Swept,
        SidecarSpoke,
        SidecarGone,
        ShimLost,
        StoodStill,
    ]
