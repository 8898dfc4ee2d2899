"""What a run left when it had ended, as values, and how its ranks are called; judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterrun.diagnosis.evidence import RankSeen
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.verdict import Culprit, ranks_in_words
from clusterrun.model.frozen import frozen
from clusterrun.model.record import Failure
from clusterrun.model.states import State


@frozen
class Remains:
    """What a run left. ``nodes`` are those of its ranks, by rank; ``notes`` other words about it.

    ``last`` are the flight records of ranks that could still leave them, ``stood`` those that still ran when
    they were told to end, with their stacks. ``per_node``: each "rank" is the launcher of one node, which
    starts ranks of its own.
    """

    state: State
    reason: str
    failure: Failure | None
    errors: tuple[Error, ...]
    nodes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    last: tuple[RankSeen, ...] = ()
    stood: tuple[RankSeen, ...] = ()
    per_node: bool = False

    def node(self, rank: int) -> str:
        return self.nodes[rank] if 0 <= rank < len(self.nodes) else ""

    def culprits(self, whys: Mapping[int, str]) -> tuple[Culprit, ...]:
        return tuple(Culprit(rank, self.node(rank), why) for rank, why in whys.items())

    def rank(self, error: Error) -> int:
        """The rank that said it; -1 where that is a launcher of several."""
        return error.inner if self.per_node else error.rank

    def quoted(self, error: Error) -> str:
        return f"{self.name(error.rank, error.inner)}: {error.said}"

    def name(self, rank: int, inner: int = -1) -> str:
        """``rank 3``, or ``node 3`` where that is the launcher of a node and its rank is not known."""
        return f"rank {inner}" if inner >= 0 else f"{'node' if self.per_node else 'rank'} {rank}"

    def who(self, rank: int, inner: int = -1) -> str:
        """The same with where that is."""
        by_node = self.per_node and inner < 0
        return self.name(rank, inner) + (f" ({self.node(rank)})" if by_node else f" on {self.node(rank)}")

    def several(self, errors: Iterable[Error]) -> str:
        """``ranks 0-2 and 5``: who said these."""
        found = list(errors)
        if self.per_node and all(one.inner >= 0 for one in found):
            return ranks_in_words({one.inner for one in found})
        return ranks_in_words({one.rank for one in found}, "node" if self.per_node else "rank")
