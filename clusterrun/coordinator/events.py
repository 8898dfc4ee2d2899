"""What can happen to a coordinator: events go in, with a reading of the clocks; values only."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.record import Attempt
from clusterrun.protocol.messages import Hello, ToCoordinator
from clusterrun.runtime.machine_events import Event


@frozen
class AgentJoined(Event):
    """An agent proved that it knows the secret; ``link`` names its connection."""

    link: int
    hello: Hello


@frozen
class AgentLeft(Event):
    """A connection ended (closed, reset, or refused after a bad frame)."""

    link: int
    why: str


@frozen
class MessageCame(Event):
    link: int
    message: ToCoordinator


@frozen
class Overloaded(Event):
    """This machine had more work than it can do for so many seconds: agents on it join late."""

    seconds: float


@frozen
class CancelAsked(Event):
    """The cancel file is in the run directory, or was written again.

    ``kill_wait``: the seconds from TERM to KILL that it names; None: those of the orders.
    """

    kill_wait: float | None = None


@frozen
class LauncherEnded(Event):
    """The program that started the agents ended, with its last words; not ``whole``: one agent alone did.

    ``others``: what started agents before, on other nodes, lives. ``launch``: which one this was, counted
    from 1; 0 is the newest.
    """

    code: int
    said: tuple[str, ...] = ()
    whole: bool = True
    others: bool = False
    launch: int = 0


@frozen
class LauncherReached(Event):
    """The nodes that hold a connection to the program that starts the agents.

    ``settled``: it waits for no answer of any node, so it reached them all.
    """

    names: tuple[str, ...]
    settled: bool = False


@frozen
class SupervisorGone(Event):
    """The first process of the batch step was killed: for the scheduler the job is over."""


@frozen
class Superseded(Event):
    """Attempt ``epoch``, which is not ours, stands in the run directory: another coordinator took over."""

    epoch: int


@frozen
class ClaimFailed(Event):
    """No attempt could be taken for minutes; ``why`` names the file."""

    why: str


@frozen
class Resubmitted(Event):
    """``Resubmit`` was carried out: the new job's number; empty if there is none, and ``why``."""

    job_id: str
    why: str = ""


@frozen
class JobTold(Event):
    """``AskJob`` was carried out, within seconds, come what may.

    ``why`` the scheduler ends this job: one of ``""`` (it does not), ``cancelled``, ``time-limit``,
    ``preemption``, ``requeue``, ``unknown`` (no answer). ``end_at`` is when it will end it (wall
    clock, seconds), None if that is not known. ``requeued``: the scheduler queues it anew by itself.
    """

    why: str
    end_at: float | None = None
    requeued: bool = False


@frozen
class Progressed(Event):
    """``ReadProgress`` was carried out; -1: nothing reported. ``stopping``: ranks end with work left."""

    epoch: int
    step: int = -1
    checkpoint: int = -1
    stopping: bool = False


@frozen
class NextQueued(Event):
    """``QueueNext`` was carried out: the number of the job that waits; empty if there is none: ``why``."""

    job_id: str
    why: str = ""


@frozen
class HandedOver(Event):
    """``Requeue`` was carried out: empty ``why`` where the scheduler has taken this job back."""

    why: str = ""


@frozen
class ClientAsked(Event):
    """The client left a question in the run directory."""

    name: str
    body: str


@frozen
class EpochClaimed(Event):
    """Attempt ``epoch`` is ours; its folder exists.

    ``earlier`` are the attempts that an older ``state.json`` tells of; not ``quiet``: ranks of one may
    still live somewhere. ``excluded`` are the nodes that earlier jobs of this run found unfit; ``cause``
    is why a coordinator makes its first attempt. ``dead_since``: the one before
    it, on ``host``, was surely killed then (steady clock); ``there`` are the nodes of this job it had.
    """

    epoch: int
    earlier: tuple[Attempt, ...] = ()
    quiet: bool = True
    excluded: tuple[str, ...] = ()
    cause: str = "first"
    dead_since: float | None = None
    host: str = ""
    there: tuple[str, ...] = ()
