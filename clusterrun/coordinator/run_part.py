"""The parts of a coordinator: what they share, and the outcomes that their calls return at the end; pure."""

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
    """The orders, the members and the record of one run; what is to be done goes to ``actions``."""

    orders: Orders
    membership: Membership
    state_keeper: RunStateKeeper
    actions: list[Action]


class RunPart:
    """A part of the coordinator. It calls no other part but those that it was given."""

    def __init__(self, shared: Shared) -> None:
        self._orders, self._membership = shared.orders, shared.membership
        self._state_keeper, self._actions = shared.state_keeper, shared.actions

    def _note(self, text: str) -> None:
        self._actions.append(Note(text))

    def _send(self, member: Member, message: ToAgent) -> None:
        self._actions.append(Send(member.link, message))

    def _dismiss(self, members: Iterable[Member]) -> None:
        for member in members:
            self._send(member, Farewell())


class Outcome:
    """How a part, or a stage of the run, ended; ``NEXT`` of the lifecycle says where the latter leads."""


@frozen
class Gathered(Outcome):
    """All agents are here that are waited for, and nothing of an older attempt can live."""


@frozen
class NodesChosen(Outcome):
    """These numbers of the allocation train, in this order; ``environment`` is for their ranks."""

    world: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]


@frozen
class TooFewNodes(Outcome):
    """Too few nodes are here or fit, because one was lost: another attempt may be made for that."""

    failure_event: FailureEvent


@frozen
class WorldFormed(Outcome):
    """The nodes that train are here, and fit."""


@frozen
class PortReady(Outcome):
    """Rank 0's node holds a port."""

    meeting: Meeting


@frozen
class NoRanks(Outcome):
    """It came to no rank: agents do not come or come back, a node was lost, no port."""

    failure_event: FailureEvent


def no_ranks(now: Now, kind: FailureKind, node: str, why: str) -> NoRanks:
    """``node`` is one whose doing it is, empty if it is none alone."""
    return NoRanks(failures.of_node(kind, node, now.wall, why))


@frozen
class AttemptOver(Outcome):
    """No rank of the attempt lives anywhere but what is ``stuck``; ``stuck_on``: names of nodes, and why.

    ``completed``: every rank exited 0. ``first`` is the failure to report, the first of which came at
    ``failed_at`` (steady clock); None if none did. ``saving`` are the ranks that were killed in their
    handler of TERM, after ``grace`` seconds.
    """

    epoch: int
    completed: bool
    all_started: bool
    first: FailureEvent | None
    failed_at: float | None
    stuck: tuple[str, ...]
    stuck_on: tuple[tuple[str, str], ...]
    saving: tuple[int, ...] = ()
    grace: float = 0.0


@frozen
class NextAttempt(Outcome):
    """Another attempt follows."""


@frozen
class RunOver(Outcome):
    """The run, or its part in this job, ends so."""

    end: RunOutcome
    failure_event: FailureEvent | None = None


@frozen
class EndAsked:
    """Somebody wants the run to end so, since ``at`` (steady clock; None: now)."""

    wish: RunOutcome
    at: float | None = None
