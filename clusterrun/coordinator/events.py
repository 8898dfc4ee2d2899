"""The events of a coordinator: values only. Each comes with a reading of the clocks."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.record import Attempt
from clusterrun.protocol.messages import Hello, ToCoordinator
from clusterrun.runtime.machine_events import Event


@frozen
class AgentJoined(Event):
    """An agent proved that it knows the secret."""

    link: int  # number of its connection
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
    """The coordinator's machine was overloaded for the last ``seconds``."""

    seconds: float


@frozen
class CancelAsked(Event):
    """The cancel file appeared in the run directory, or was written again."""

    kill_wait: float | None = None  # seconds from TERM to KILL; None: those of the orders


@frozen
class LauncherEnded(Event):
    """The launcher ended, or one of the agents that it started."""

    code: int
    output: tuple[str, ...] = ()  # first and last lines that the launcher printed
    whole: bool = True  # False: only one agent ended
    others: bool = False  # an earlier launcher, with agents on other nodes, still runs
    launch: int = 0  # number of the launch, counted from 1; 0: the newest


@frozen
class MemoryKilled(Event):
    """The launcher printed that Slurm or the kernel killed processes of the step for their memory."""

    node: str  # empty if the line names none
    line: str


@frozen
class LauncherReached(Event):
    """The nodes that hold a connection to the launcher."""

    names: tuple[str, ...]
    settled: bool = False  # the launcher waits for no node, so it reached all of them


@frozen
class SupervisorGone(Event):
    """The first process of the batch step was killed. The job is over for the scheduler."""


@frozen
class Superseded(Event):
    """Another coordinator took over: it wrote attempt ``epoch`` into the run directory."""

    epoch: int


@frozen
class ClaimFailed(Event):
    """No attempt could be taken for minutes."""

    why: str  # names the file


@frozen
class Resubmitted(Event):
    """``Resubmit`` was carried out."""

    job_id: str  # empty if no job was queued
    why: str = ""  # why no job was queued


@frozen
class JobTold(Event):
    """``AskJob`` was carried out. The event comes within seconds even if the scheduler does not answer."""

    # Why the scheduler ends this job: ``""`` (it does not), ``cancelled``, ``time-limit``, ``preemption``,
    # ``requeue`` or ``unknown`` (no answer).
    why: str
    end_at: float | None = None  # when the scheduler ends the job (wall clock, seconds); None: unknown
    requeued: bool = False  # the scheduler queues the job again by itself
    in_grace: bool = False  # the job is preempted, and may go on for a grace time, whose end may be unknown
    halted: bool = False  # the scheduler suspended the job, or stopped it by a signal


@frozen
class Progressed(Event):
    """``ReadProgress`` was carried out."""

    epoch: int
    step: int = -1  # -1: not reported
    checkpoint: int = -1  # step of the newest checkpoint; -1: not reported
    stopping: bool = False  # ranks end before their work is complete
    # The last node that reported a lost coordinator although it reaches Slurm, and when (its wall clock).
    orphan: str = ""
    orphan_at: float = 0.0


@frozen
class NextQueued(Event):
    """``QueueNext`` was carried out."""

    job_id: str  # the job that waits; empty if there is none
    why: str = ""  # why there is none


@frozen
class HandedOver(Event):
    """``Requeue`` was carried out."""

    why: str = ""  # why the scheduler did not requeue the job; empty if it did


@frozen
class ClientAsked(Event):
    """The client left a question in the run directory."""

    name: str
    body: str


@frozen
class EpochClaimed(Event):
    """This coordinator holds attempt ``epoch``, whose folder exists."""

    epoch: int
    earlier: tuple[Attempt, ...] = ()  # attempts recorded in an older ``state.json``
    quiet: bool = True  # False: ranks of an earlier attempt may still live
    excluded: tuple[str, ...] = ()  # nodes that earlier jobs of this run marked as unfit
    cause: str = "first"  # why this coordinator makes its first attempt
    dead_since: float | None = None  # when the previous coordinator was killed (steady clock); None: unknown
    host: str = ""  # host of the previous coordinator
    nodes: tuple[str, ...] = ()  # nodes of this job that the previous coordinator had
    lease: float = contract.LEASE_SECONDS  # lease of the nodes of the previous coordinator
