"""The base class of the coordinator's parts, and the outcomes that their calls return; pure."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import Send
from clusterrun.coordinator.failures import FailureEvent, FailureKind, RunOutcome
from clusterrun.coordinator.membership import Member, Membership
from clusterrun.coordinator.run_state import RunStateKeeper
from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Orders
from clusterrun.model.world import Meeting
from clusterrun.protocol.messages import Farewell, ToAgent
from clusterrun.runtime.machine_events import Action, Note, Now


@frozen
class Shared:
    """The objects that all parts of one run share."""

    orders: Orders
    membership: Membership
    state_keeper: RunStateKeeper
    actions: list[Action]  # collects the actions to carry out


class RunPart:
    """A part of the coordinator. It calls only the parts that its constructor got."""

    def __init__(self, shared: Shared) -> None:
        self._orders, self._membership = shared.orders, shared.membership
        self._state_keeper, self._actions = shared.state_keeper, shared.actions

    def _note(self, text: str) -> None:
        self._actions.append(Note(text))

    def _send(self, member: Member, message: ToAgent) -> None:
        self._actions.append(Send(member.link, message))

    def _unless_overloaded(
        self, now: Now, kind: FailureKind, since: float, nodes: Iterable[int] = ()
    ) -> FailureKind:
        """Return ``kind``, or OVERLOAD if an overload of this machine or of ``nodes`` explains the wait."""
        return FailureKind.OVERLOAD if self._membership.excuse(nodes, since, now) else kind

    def _dismiss(self, members: Iterable[Member]) -> None:
        for member in members:
            self._send(member, Farewell())


class Outcome:
    """How a part or a stage of the run ended. ``NEXT`` of the lifecycle gives the stage that follows."""


@frozen
class Gathered(Outcome):
    """All expected agents have joined, and no rank of an older attempt can live."""


@frozen
class NodesChosen(Outcome):
    """The nodes that train are chosen."""

    world: tuple[int, ...]  # numbers in the allocation, in rank order
    environment: tuple[tuple[str, str], ...]  # for the ranks


@frozen
class TooFewNodes(Outcome):
    """Too few nodes are present or fit, because a node was lost. Another attempt may follow."""

    failure_event: FailureEvent


@frozen
class WorldFormed(Outcome):
    """The nodes that train are present and fit."""


@frozen
class PortReady(Outcome):
    """Rank 0's node holds a port."""

    meeting: Meeting


@frozen
class NoRanks(Outcome):
    """No rank was started: agents did not come or come back, a node was lost, or no port was found."""

    failure_event: FailureEvent


def no_ranks(now: Now, kind: FailureKind, node: str, why: str) -> NoRanks:
    """Return the outcome of a failure before ranks. ``node`` is at fault; empty if no single node is."""
    return NoRanks(failures.of_node(kind, node, now.wall, why))


@frozen
class AttemptOver(Outcome):
    """No rank of the attempt lives, except the processes in ``stuck``."""

    epoch: int
    completed: bool  # every rank exited 0
    all_started: bool
    first: FailureEvent | None  # the failure to report
    failed_at: float | None  # when the first failure arrived (steady clock)
    stuck: tuple[str, ...]  # processes that cannot be killed
    stuck_on: tuple[tuple[str, str], ...]  # names of their nodes, and the reason
    saving: tuple[int, ...] = ()  # ranks that were killed in their TERM handler
    grace: float = 0.0  # seconds that ranks had from TERM to KILL


@frozen
class NextAttempt(Outcome):
    """Another attempt follows."""


@frozen
class RunOver(Outcome):
    """The run, or its part in this job, ends."""

    end: RunOutcome
    failure_event: FailureEvent | None = None
    decision: str = ""  # why the failure leads to the end, as in ``status --json``


@frozen
class EndAsked:
    """A request to end the run."""

    wish: RunOutcome
    at: float | None = None  # when it was made (steady clock); None: now
