"""What coordinator and agents tell each other over the network, as JSON; values only."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.world import Meeting, World


class ToAgent:
    """What the coordinator sends to an agent."""


class ToCoordinator:
    """What an agent sends to the coordinator."""


@frozen
class ReservePort(ToAgent):
    """Bind a free port for rank 0 of ``epoch`` and answer with ``PortReserved``."""

    epoch: int


@frozen
class StartRanks(ToAgent):
    """Start the ranks of this node; an epoch that is not above every epoch seen is refused.

    ``node`` is this node's index in ``world``. ``environment`` is what was found best for all nodes,
    for names that are set nowhere else. ``last_epoch`` is the last one that may follow, if all fail.
    """

    epoch: int
    world: World
    node: int
    meeting: Meeting
    environment: tuple[tuple[str, str], ...] = ()
    last_epoch: int = 0


@frozen
class StopRanks(ToAgent):
    """End the ranks of ``epoch``: TERM and CONT now, KILL after ``grace`` seconds, then ``RanksGone``.

    ``sooner``: a user wants the KILL after ``grace`` seconds even if a longer time was granted before.
    """

    epoch: int
    grace: float
    sooner: bool = False


@frozen
class SignalRanks(ToAgent):
    """Pass a signal (by number) to the rank processes of ``epoch`` that catch it, not to their children."""

    epoch: int
    number: int


@frozen
class Ack(ToAgent):
    """Heartbeat number ``beat`` arrived; ``wall`` is the coordinator's clock, for log times."""

    beat: int
    wall: float


@frozen
class AskSidecar(ToAgent):
    """Pass ``body`` on to the sidecar process of that name, which is started where it does not run.

    ``number`` comes back with the answer; what ``body`` says is between its collaborators.
    """

    epoch: int
    sidecar: str
    number: int
    body: str


@frozen
class EndSidecar(ToAgent):
    """Kill the sidecar process of that name and all below it."""

    epoch: int
    sidecar: str


@frozen
class Farewell(ToAgent):
    """The run is over: end what still lives here, then exit 0."""


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
class Beat(ToCoordinator):
    """A heartbeat; numbered, so that the acknowledged one's sending time is known."""

    number: int


@frozen
class PortReserved(ToCoordinator):
    """Port ``port`` is held for rank 0 of ``epoch``; 0 if none could be had, and ``why``."""

    epoch: int
    port: int
    why: str = ""


@frozen
class RanksStarted(ToCoordinator):
    """All ranks of this node run (their processes exist)."""

    epoch: int


@frozen
class RankExited(ToCoordinator):
    """A rank ended. ``code`` is the exit code, negative for a signal; ``at`` is on the coordinator's clock.

    ``last_lines`` is the end of what it printed (at most ``contract.TAIL_LINES``), ``traceback``
    what its program left in ``TORCHELASTIC_ERROR_FILE``, both only for a failure; ``collision``
    says that its words are those of a port already in use. ``stopped``: this node had been told to
    end its ranks before (by the coordinator or a signal of its own), so the end is a consequence.
    The agent's machine fills in ``at`` and ``stopped``.
    ``noticed``: its words are those of a rank that only noticed that another one had gone.
    ``lost_connection``: it ended of a broken connection, which may be another rank's failure.
    ``saving``: it was killed while its handler of TERM was still running.
    """

    epoch: int
    rank: int
    code: int
    at: float = 0.0
    last_lines: tuple[str, ...] = ()
    traceback: str = ""
    collision: bool = False
    stopped: bool = False
    noticed: bool = False
    lost_connection: bool = False
    saving: bool = False


@frozen
class StartFailed(ToCoordinator):
    """The ranks of this node could not be started (``why``: no such program, no such directory, …)."""

    epoch: int
    why: str


@frozen
class RanksGone(ToCoordinator):
    """Checked: no process of ``epoch`` is left on this node but ``stuck`` (pid and what it waits in)."""

    epoch: int
    stuck: tuple[str, ...] = ()


@frozen
class SignalSeen(ToCoordinator):
    """Slurm, or somebody on the node, sent this node's agent a signal."""

    number: int


@frozen
class SignalTaken(ToCoordinator):
    """A signal was passed on to ``ranks`` rank processes of this node: those that catch it."""

    epoch: int
    number: int
    ranks: int


@frozen
class SidecarSaid(ToCoordinator):
    """A sidecar's answer to question ``number``; 0 is what it says unasked."""

    epoch: int
    sidecar: str
    number: int
    body: str


@frozen
class SidecarEnded(ToCoordinator):
    """A sidecar ended, or could not be started (``why``), without having been told to."""

    epoch: int
    sidecar: str
    why: str
