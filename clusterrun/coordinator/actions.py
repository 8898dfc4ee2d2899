"""The actions of the coordinator: values only. They are carried out in order."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Report
from clusterrun.model.record import RunState
from clusterrun.protocol.messages import ToAgent
from clusterrun.runtime.machine_events import Action


@frozen
class Send(Action):
    link: int
    message: ToAgent


@frozen
class DropLink(Action):
    link: int


@frozen
class ClaimEpoch(Action):
    """Take an attempt number exclusively. The answer is ``EpochClaimed``, or ``ClaimFailed`` after minutes.

    The answer is ``Superseded`` if another coordinator holds ``after`` + 1. So two coordinators never
    leap-frog each other.
    """

    after: int = -1  # take exactly the next number; -1: take the next free number


@frozen
class LaunchAgents(Action):
    """Start one agent per node."""

    # Names of nodes that get no agent. An agent of an earlier launch may still run there.
    without: tuple[str, ...] = ()


@frozen
class LookAtLauncher(Action):
    """Find out which of these nodes hold a connection to the launcher; ends in ``LauncherReached``."""

    names: tuple[str, ...]


@frozen
class EndLauncher(Action):
    """End the program that started the agents (TERM, then KILL)."""


@frozen
class SaveState(Action):
    """Write ``state.json``."""

    state: RunState


@frozen
class SaveReport(Action):
    """Write the pre-flight report of attempt ``epoch``."""

    epoch: int
    report: Report
    keep: bool  # write it to the cluster's findings too


@frozen
class SaveBeside(Action):
    """Write ``text`` as file ``name`` of attempt ``epoch``."""

    epoch: int
    name: str
    text: str


@frozen
class Resubmit(Action):
    """Queue this run again with the program ``argv``, without ``excluded``; ends in ``Resubmitted``."""

    argv: tuple[str, ...]
    excluded: tuple[str, ...]


@frozen
class AskJob(Action):
    """Ask the scheduler about this job; ends in ``JobTold``."""


@frozen
class ReadProgress(Action):
    """Read the reports of rank 0 of attempt ``epoch`` and of cut-off agents; ends in ``Progressed``."""

    epoch: int


@frozen
class WriteNotice(Action):
    """Write ``notice.json`` of attempt ``epoch``."""

    epoch: int
    why: str
    until: float  # when ranks must have ended (wall clock, seconds)


@frozen
class QueueNext(Action):
    """Queue the job that continues the run, unless it waits already; ends in ``NextQueued``."""

    excluded: tuple[str, ...]


@frozen
class ExcludeNext(Action):
    """Exclude these nodes from the waiting job, as far as the scheduler allows it."""

    nodes: tuple[str, ...]


@frozen
class DropNext(Action):
    """Cancel the waiting job, because it has no work."""


@frozen
class Requeue(Action):
    """Requeue this job without the nodes ``excluded``; ends in ``HandedOver``."""

    excluded: tuple[str, ...]


@frozen
class Announce(Action):
    """Tell the user's own program and the user's addresses of ``event``."""

    event: str
    state: RunState  # the run at that moment
    at: float  # wall clock, seconds
    reason: str = ""  # '': that of ``state``
    is_handover: bool = False  # a restart by another job or coordinator than the last attempt's


@frozen
class Finish(Action):
    """The coordinator has no work left. It exits with ``code``."""

    code: int
