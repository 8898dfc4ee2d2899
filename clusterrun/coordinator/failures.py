"""Describe failures: their kind, the rank or node, and the sentence for the user; pure."""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence

from clusterrun.model.contract import STARVED
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.phrases import code_in_words
from clusterrun.model.record import Failure
from clusterrun.model.states import State
from clusterrun.protocol.messages import RankExited


class FailureKind(enum.Enum):
    """The kind of failure that ended an attempt. It decides whether another attempt makes sense."""

    RANK = "a rank failed"
    COLLISION = "rank 0 found its port in use"
    NODE = "a node was lost"
    MEMORY = "Slurm or the kernel killed a rank, or all processes of a node, for lack of memory"
    OVERLOAD = "a node was lost, or a limit expired, on an overloaded machine before ranks started"
    START = "ranks could not be started"
    LAUNCHER = "agents did not come, or ended with what had started them"
    HANG = "nothing moved any more"


@frozen
class FailureEvent:
    """A failure that ends an attempt."""

    kind: FailureKind
    failure: Failure  # for the record
    # The rank ended because of a broken connection. The end of another rank may have broken it.
    lost_connection: bool = False
    everywhere: bool = False  # a rank failed with the same error on every node
    # The node was not heard any more, or its connection ended, without an act of the coordinator.
    out_of_reach: bool = False

    @property
    def ended_by_request(self) -> bool:
        """Return whether the exit code is that of a TERM or INT, which somebody may have sent to the rank."""
        signals = (signal.SIGTERM, signal.SIGINT)
        return self.failure.code in [-number for number in signals] + [128 + number for number in signals]


@frozen
class RunOutcome:
    """How a run ends."""

    state: State
    reason: str
    exit_code: int


def of_rank(exited: RankExited, node: str, per_node: bool, peer: str) -> FailureEvent:
    """Return the failure of a rank (with ``per_node``: the launcher of a node) with a code other than 0.

    ``peer`` is the node whose address its last output names.
    """
    kind = FailureKind.COLLISION if exited.collision and exited.rank == 0 else FailureKind.RANK
    subject = f"node {exited.rank} ({node})" if per_node else f"rank {exited.rank} on {node}"
    why = f"{subject} {code_in_words(exited.code)}"
    if exited.code == -signal.SIGKILL and STARVED in exited.last_lines:
        kind, why = FailureKind.MEMORY, f"{why}, as the kernel does when memory runs out"
    details = (exited.last_lines, exited.traceback, exited.noticed)
    failure = Failure(exited.rank, node, exited.code, exited.at, why, *details, peer=peer)
    failure = replace(failure, error=exited.error, place=exited.place)
    return FailureEvent(kind, failure, exited.lost_connection)


def after_early_ends(failure_event: FailureEvent, ended: Sequence[int], noun: str) -> FailureEvent:
    """Return the failure with the ranks that ended with exit code 0 while other ranks needed them."""
    from clusterrun.diagnosis.verdict import folded, ranks_in_words  # at the end of an attempt, not before

    ranks = tuple(sorted(ended))
    early = ranks_in_words(ranks, noun)
    why = f"{early} ended with exit code 0 before the others; then {failure_event.failure.why}"
    return replace(failure_event, failure=replace(failure_event.failure, why=why, ended=folded(ranks)))


def of_node(kind: FailureKind, node: str, at: float, why: str) -> FailureEvent:
    """Return the failure of a whole node; ``at`` is when the node was last heard."""
    return FailureEvent(kind, Failure(-1, node, 1, at, why))


def of_memory(node: str, at: float, line: str) -> FailureEvent:
    """Return the failure of a step that was killed for its memory. ``line`` is Slurm's message."""
    subject = f"memory ran out on {node}" if node else "memory ran out"
    error = line.partition("error: ")[2]
    why = f"{subject}, and the processes of the job were killed: {error}"
    return FailureEvent(FailureKind.MEMORY, Failure(-1, node, -signal.SIGKILL, at, why, error=error))


def of_silent(several: Sequence[str], others: Sequence[str], host: str, at: float) -> FailureEvent:
    """Return the failure of ``several`` nodes that fell silent together. It blames no node.

    ``others`` are the nodes that were heard. ``host`` is the coordinator's host.
    """
    names = fold(list(several))
    parts = f"the network is partitioned between them and {fold([*others] or [host])}"
    alone = "" if {*others} - {host} else f" ({host} may itself be cut off)"
    message = f"{names} fell silent at the same time: {parts}{alone}, or they are down"
    message += f"; what does sinfo -N -n {names} say?"
    return of_node(FailureKind.NODE, "", at, message)


def of_connection(failure_event: FailureEvent, host: str) -> FailureEvent:
    """Return the loss of a node that lives as the failure of its connection to the coordinator's ``host``."""
    failure = failure_event.failure
    why = f"{failure.why}; but {failure.node} lives and reaches Slurm"
    why += f": the connection between {host} and {failure.node} is broken, or one of its two ends"
    return replace(failure_event, failure=replace(failure, why=why, peer=host))


def nodes_in_words(names: Sequence[str]) -> str:
    """Return ``node n3`` or ``nodes n1, n2 and n7``, with eight names at most."""
    if len(names) == 1:
        return f"node {names[0]}"
    if len(names) > 8:
        return f"nodes {', '.join(names[:8])} and {len(names) - 8} more"
    return f"nodes {', '.join(names[:-1])} and {names[-1]}"
