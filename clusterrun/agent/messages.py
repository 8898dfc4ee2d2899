"""What coordinator and agents tell each other, and what their machines are told and order; values only.

Three families. *Messages* cross the network as JSON. *Events* go into a machine: something
happened. *Orders* come out: something is to be done. The machines (``coordinator.py``,
``agent.py``) hold all policy and touch nothing; ``loop.py`` and ``process.py`` turn the world
into events and carry orders out, and hold no policy. The simulator in the tests does the same
with a world of its own.
"""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.record import RunState
from clusterrun.model.world import Meeting, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union


@frozen
class Now:
    """One reading of both clocks, in seconds: ``steady`` for every decision, ``wall`` for records only."""

    steady: float
    wall: float


# --- messages, coordinator to agent ---------------------------------------------------------


@frozen
class ReservePort:
    """Bind a free port for rank 0 of ``epoch`` and answer with ``PortReserved``."""

    epoch: int


@frozen
class StartRanks:
    """Start the ranks of this node. An epoch that is not above every epoch seen is refused."""

    epoch: int
    world: World
    node: int
    meeting: Meeting


@frozen
class StopRanks:
    """End the ranks of ``epoch``: TERM and CONT now, KILL after ``grace`` seconds, then ``RanksGone``."""

    epoch: int
    grace: float


@frozen
class SignalRanks:
    """Pass a signal (by number) to the rank processes of ``epoch``, not to their children."""

    epoch: int
    number: int


@frozen
class Ack:
    """Heartbeat number ``beat`` arrived; ``wall`` is the coordinator's clock, for log times."""

    beat: int
    wall: float


@frozen
class Farewell:
    """The run is over: end what still lives here, then exit 0."""


# --- messages, agent to coordinator ---------------------------------------------------------


@frozen
class Hello:
    """Who joins: sent inside the handshake, so all of it is authenticated.

    ``node`` is this node's number within the allocation, ``name`` its name, ``address`` the
    address from which it reaches the coordinator, ``epoch`` the highest epoch it has seen (-1).
    """

    node: int
    name: str
    address: str
    pid: int
    python: str
    epoch: int = -1


@frozen
class Beat:
    """A heartbeat; numbered, so that the acknowledged one's sending time is known."""

    number: int


@frozen
class PortReserved:
    """Port ``port`` is held for rank 0 of ``epoch``; 0 where none could be had, and ``why``."""

    epoch: int
    port: int
    why: str = ""


@frozen
class RanksStarted:
    """All ranks of this node run (their processes exist)."""

    epoch: int


@frozen
class RankExited:
    """A rank ended. ``code`` is the exit code, negative for a signal; ``at`` is on the coordinator's clock.

    ``last_lines`` is the end of what it printed (at most ``contract.TAIL_LINES``), ``traceback``
    what its program left in ``TORCHELASTIC_ERROR_FILE``, both only for a failure; ``collision``
    says that its words are those of a port already in use.
    """

    epoch: int
    rank: int
    code: int
    at: float
    last_lines: tuple[str, ...] = ()
    traceback: str = ""
    collision: bool = False


@frozen
class StartFailed:
    """The ranks of this node could not be started (``why``: no such program, no such directory, …)."""

    epoch: int
    why: str


@frozen
class RanksGone:
    """Checked: no process of ``epoch`` is left on this node but ``stuck`` (pid and what it waits in)."""

    epoch: int
    stuck: tuple[str, ...] = ()


@frozen
class SignalSeen:
    """This node got a signal of its own (a scheduler's TERM or notice)."""

    number: int


if TYPE_CHECKING:
    ToAgent = Union[ReservePort, StartRanks, StopRanks, SignalRanks, Ack, Farewell]
    ToCoordinator = Union[Beat, PortReserved, RanksStarted, RankExited, StartFailed, RanksGone, SignalSeen]

TO_AGENT = (ReservePort, StartRanks, StopRanks, SignalRanks, Ack, Farewell)
TO_COORDINATOR = (Beat, PortReserved, RanksStarted, RankExited, StartFailed, RanksGone, SignalSeen)


# --- events into the coordinator ------------------------------------------------------------


@frozen
class AgentJoined:
    """An agent proved that it knows the secret; ``link`` names its connection."""

    link: int
    hello: Hello


@frozen
class AgentLeft:
    """A connection ended (closed, reset, or refused after a bad frame)."""

    link: int
    why: str


@frozen
class Heard:
    """A message came over ``link``."""

    link: int
    message: ToCoordinator


@frozen
class SignalCame:
    """This process got a signal (by number)."""

    number: int


@frozen
class CancelAsked:
    """The cancel file stands in the run directory."""


@frozen
class LauncherEnded:
    """The program that started the agents ended, with its last words."""

    code: int
    said: tuple[str, ...] = ()


@frozen
class Superseded:
    """A higher attempt than ours stands in the run directory: another coordinator took over."""

    epoch: int


@frozen
class Tick:
    """Time passed; sent whenever ``wakes_at`` of a machine is reached, and at start."""


# --- orders from the coordinator ------------------------------------------------------------


@frozen
class Send:
    """Send ``message`` over ``link``."""

    link: int
    message: ToAgent


@frozen
class DropLink:
    """Close a connection."""

    link: int


@frozen
class ClaimEpoch:
    """Take the next free attempt number (exclusively) and answer with the event ``EpochClaimed``."""


@frozen
class EpochClaimed:
    """Event: attempt ``epoch`` is ours; its folder exists."""

    epoch: int


@frozen
class LaunchAgents:
    """Start one agent per node."""


@frozen
class EndLauncher:
    """End the program that started the agents (TERM, then KILL)."""


@frozen
class SaveState:
    """Write ``state.json``."""

    state: RunState


@frozen
class Note:
    """A line for the coordinator's log (and the batch step's output)."""

    text: str


@frozen
class Finish:
    """Nothing is left to do: exit with ``code``."""

    code: int


# --- events into an agent -------------------------------------------------------------------


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
class Swept:
    """After ``Sweep``: nothing of ``epoch`` is left but ``stuck``."""

    epoch: int
    stuck: tuple[str, ...] = ()


# --- orders from an agent -------------------------------------------------------------------


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
class Spawn:
    """Start the ranks of node number ``node``; ends in ``RanksSpawned`` or ``SpawnFailed``."""

    epoch: int
    world: World
    node: int
    meeting: Meeting


@frozen
class SignalLocal:
    """Send signal ``number`` to the rank processes themselves (with a CONT after a TERM)."""

    number: int


@frozen
class Sweep:
    """Kill everything of ``epoch`` that lives here, whoever its parent; ends in ``Swept``."""

    epoch: int


@frozen
class RenewLease:
    """Tell the shim that this node may live until ``until`` (this machine's steady clock)."""

    until: float


@frozen
class Exit:
    """The agent is done: exit with ``code`` (nothing of any epoch is left, or the shim sweeps it)."""

    code: int
