"""How a part of the coordinator ends what it does: a call returns one of these, or None while it goes on."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from clusterrun.coordinator.events import EpochClaimed
    from clusterrun.coordinator.failures import FailureEvent, FailureKind, RunOutcome
    from clusterrun.model.world import Meeting


@frozen
class AttemptClaimed:
    """An attempt is ours."""

    event: EpochClaimed


@frozen
class Gathered:
    """All agents are here that are waited for, and nothing of an older attempt can live."""


@frozen
class NotGathered:
    """Agents do not come; ``node`` is one that did not come back, empty where it is none alone."""

    kind: FailureKind
    node: str
    why: str


@frozen
class NodesChosen:
    """These numbers of the allocation train, in this order; ``environment`` is for their ranks."""

    world: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]


@frozen
class TooFewNodes:
    """Too few nodes are here or fit, because one was lost: another attempt may be made for that."""

    failure_event: FailureEvent


@frozen
class WorldFormed:
    """The nodes that train are here, and fit."""


@frozen
class PortReady:
    """Rank 0's node holds a port."""

    meeting: Meeting


@frozen
class NoRanks:
    """It came to no rank: agents do not come, a node was lost, no port."""

    failure_event: FailureEvent


@frozen
class AttemptOver:
    """No rank of the attempt lives anywhere but what is ``stuck``; ``stuck_on``: names of nodes, and why.

    ``completed``: every rank exited 0. ``first`` is the failure to report, the first of which came at
    ``failed_at`` (steady clock); None where none did.
    """

    epoch: int
    completed: bool
    all_started: bool
    first: FailureEvent | None
    failed_at: float | None
    stuck: tuple[str, ...]
    stuck_on: tuple[tuple[str, str], ...]


@frozen
class NextAttempt:
    """Another attempt follows."""


@frozen
class RunOver:
    """The run, or its part in this job, ends so."""

    end: RunOutcome
    failure_event: FailureEvent | None = None


@frozen
class EndAsked:
    """Somebody wants the run to end so, since ``at`` (steady clock; None: now)."""

    wish: RunOutcome
    at: float | None = None


if TYPE_CHECKING:
    StageOutcome = Union[
        AttemptClaimed, TooFewNodes, WorldFormed, PortReady, NoRanks, AttemptOver, NextAttempt, RunOver
    ]
