"""The messages between coordinator and agents, sent as JSON; values only."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.world import Meeting, World


class ToAgent:
    """A message of the coordinator to an agent."""


class ToCoordinator:
    """A message of an agent to the coordinator."""


@frozen
class ReservePort(ToAgent):
    """Bind a free port for rank 0 of ``epoch`` and answer with ``PortReserved``."""

    epoch: int


@frozen
class StartRanks(ToAgent):
    """Start the ranks of this node. The agent refuses an epoch that is not above all earlier ones."""

    epoch: int
    world: World
    node: int  # index of this node in ``world``
    meeting: Meeting
    # The best settings for all nodes. They apply to variables that are set nowhere else.
    environment: tuple[tuple[str, str], ...] = ()
    last_epoch: int = 0  # the last epoch that may follow if all fail


@frozen
class StopRanks(ToAgent):
    """End the ranks of ``epoch``: TERM and CONT now, KILL after ``grace`` seconds, then ``RanksGone``."""

    epoch: int
    grace: float
    sooner: bool = False  # kill after ``grace`` seconds even if ranks had a longer time before


@frozen
class SignalRanks(ToAgent):
    """Pass a signal (by number) to the processes of the ranks of ``epoch`` that catch it."""

    epoch: int
    number: int
    # Slurm sent it to the job's steps. A rank without a process that catches it gets it too, and the signal
    # may end that rank.
    to_all: bool = False
    # It came before the ranks ran. The coordinator repeats it until they had time to install a handler, and
    # each rank gets it once.
    is_held: bool = False


@frozen
class Ack(ToAgent):
    """The acknowledgement of a heartbeat."""

    beat: int  # number of the heartbeat
    wall: float  # the coordinator's clock, for log times


@frozen
class AskSidecar(ToAgent):
    """Pass ``body`` on to a sidecar process. Start the sidecar if it does not run."""

    epoch: int
    sidecar: str
    number: int  # the answer repeats it
    body: str  # only the sender and the sidecar know its format


@frozen
class EndSidecar(ToAgent):
    """Kill the sidecar process of that name and all its descendants."""

    epoch: int
    sidecar: str


@frozen
class Farewell(ToAgent):
    """The run is over. End all processes that are left on the node, then exit 0."""


@frozen
class Hello:
    """The agent that joins. It is sent inside the handshake, so all of it is authenticated."""

    node: int  # number of the node in the allocation
    name: str
    address: str  # the agent's address on the connection to the coordinator
    pid: int
    epoch: int = -1  # the highest epoch that the agent knows; -1: none


@frozen
class Beat(ToCoordinator):
    """A heartbeat."""

    number: int  # the acknowledgement repeats it, which gives the round-trip time


@frozen
class NodeOverloaded(ToCoordinator):
    """The node had more work than it could do for the last ``seconds``. Its answers may be late."""

    seconds: float


@frozen
class PortReserved(ToCoordinator):
    """The answer to ``ReservePort``."""

    epoch: int
    port: int  # held for rank 0; 0: no port could be reserved
    why: str = ""  # why no port could be reserved


@frozen
class RanksStarted(ToCoordinator):
    """All ranks of this node run (their processes exist)."""

    epoch: int


@frozen
class RankExited(ToCoordinator):
    """A rank ended. The agent's state machine fills in ``at`` and ``stopped``."""

    epoch: int
    rank: int
    code: int  # exit code; negative: the signal that killed the rank
    at: float = 0.0  # on the coordinator's clock
    last_lines: tuple[str, ...] = ()  # end of the output, at most ``contract.TAIL_LINES``; only for a failure
    traceback: str = ""  # content of ``TORCHELASTIC_ERROR_FILE``; only for a failure
    collision: bool = False  # the output reports a port that is already in use
    # The node was ending its ranks, so this end is a consequence.
    stopped: bool = False
    noticed: bool = False  # the rank only noticed the end of another rank, according to its output
    lost_connection: bool = False  # a connection broke, which may be another rank's failure
    saving: bool = False  # the rank handled TERM and was killed
    error: str = ""  # the error that ended the rank, as printed; '' from agents of older versions
    place: str = ""  # the innermost line of the user's code in its traceback


@frozen
class StartFailed(ToCoordinator):
    """The ranks of this node could not be started."""

    epoch: int
    why: str  # no such program, no such directory, …


@frozen
class RanksGone(ToCoordinator):
    """No process of ``epoch`` is left on this node, except those in ``stuck``. The agent has checked that."""

    epoch: int
    stuck: tuple[str, ...] = ()  # process id, and the kernel function that the process waits in
    cut: tuple[str, ...] = ()  # processes that outlived their ranks, and were ended
    why: str = ""  # why the agent ended them without an order; '' from older versions


@frozen
class SignalSeen(ToCoordinator):
    """Slurm, or somebody on the node, sent this node's agent a signal."""

    number: int


@frozen
class SignalTaken(ToCoordinator):
    """A signal was passed on to ``ranks`` rank processes of this node, which catch it."""

    epoch: int
    number: int
    ranks: int


@frozen
class SidecarSaid(ToCoordinator):
    """A message of a sidecar."""

    epoch: int
    sidecar: str
    number: int  # of the question that it answers; 0: none
    body: str


@frozen
class SidecarEnded(ToCoordinator):
    """A sidecar ended without an order to end, or could not be started."""

    epoch: int
    sidecar: str
    why: str
