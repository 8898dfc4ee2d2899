"""What the coordinator orders to be done; values only, carried out in the order in which they come."""

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
    """Take an attempt number exclusively; ends in ``EpochClaimed``, or in ``ClaimFailed`` after minutes.

    ``after`` -1: the next free number. Otherwise exactly ``after`` + 1, and where another
    coordinator holds that one the answer is ``Superseded``: two of them never leap-frog.
    """

    after: int = -1


@frozen
class LaunchAgents(Action):
    """Start one agent per node; ``without``: again, and not on the nodes of these names.

    Some of these may have an agent of an earlier launch, which lives.
    """

    without: tuple[str, ...] = ()


@frozen
class LookAtLauncher(Action):
    """Find out which of these nodes hold a connection to the program that starts the agents."""

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
    """Write what the pre-flight of attempt ``epoch`` found; ``keep``: among the cluster's findings too."""

    epoch: int
    report: Report
    keep: bool


@frozen
class SaveBeside(Action):
    """Write ``text`` as file ``name`` of attempt ``epoch``."""

    epoch: int
    name: str
    text: str


@frozen
class Resubmit(Action):
    """Queue this run anew by the program ``argv``, without ``excluded``; ends in ``Resubmitted``."""

    argv: tuple[str, ...]
    excluded: tuple[str, ...]


@frozen
class AskJob(Action):
    """Ask the scheduler about this job; ends in ``JobTold``."""


@frozen
class ReadProgress(Action):
    """Read what rank 0 of attempt ``epoch`` has reported; ends in ``Progressed``, at once."""

    epoch: int


@frozen
class WriteNotice(Action):
    """Write ``notice.json`` of attempt ``epoch``: ranks are to end by ``until`` (wall clock), and ``why``."""

    epoch: int
    why: str
    until: float


@frozen
class QueueNext(Action):
    """Queue the job that goes on after this one, unless it waits already; ends in ``NextQueued``."""

    excluded: tuple[str, ...]


@frozen
class ExcludeNext(Action):
    """Keep the waiting job off these nodes, as far as the scheduler lets us."""

    nodes: tuple[str, ...]


@frozen
class DropNext(Action):
    """Take the waiting job back: nothing is left for it to do."""


@frozen
class Requeue(Action):
    """Give this job back to the scheduler, to start again, not on ``excluded``; ends in ``HandedOver``."""

    excluded: tuple[str, ...]


@frozen
class Announce(Action):
    """Tell the user's own program of ``event``; ``state`` is the run at that moment, ``at`` wall clock."""

    event: str
    state: RunState
    at: float


@frozen
class Finish(Action):
    """Nothing is left to do: exit with ``code``."""

    code: int
