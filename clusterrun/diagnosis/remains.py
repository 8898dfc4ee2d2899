"""The remains of an ended run, and how its ranks are named. They judge nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.printed_errors import Error, is_timer
from clusterrun.diagnosis.verdict import Culprit, ranks_in_words
from clusterrun.model.frozen import frozen
from clusterrun.model.record import Failure
from clusterrun.model.states import State

_OUT_OF_MEMORY = re.compile(r"(?i:oom[-_ ]kill|out of memory|memory (?:limit|ran out))")


@frozen
class Remains:
    """The remains of an ended run."""

    state: State
    reason: str
    failure: Failure | None
    printed: tuple[Error, ...]  # the errors that ranks printed, by time
    nodes: tuple[str, ...]  # the node of every rank
    notes: tuple[str, ...] = ()  # warnings about the run
    last: tuple[RankSnapshot, ...] = ()  # ranks that left flight records
    # ranks that still ran when their end was requested, with their stacks
    stood: tuple[RankSnapshot, ...] = ()
    per_node: bool = False  # each "rank" is the launcher of one node, which starts ranks of its own

    @cached_property
    def errors(self) -> tuple[Error, ...]:
        """Return the errors, without timers, each as that of the rank in which it happened."""
        errors = [error for error in self.printed if not is_timer(error)]
        if self.per_node:
            return tuple(errors)
        ranks = range(len(self.nodes))
        placed = [error.of_rank(error.origin) if error.origin in ranks else error for error in errors]
        # Every rank reports an error of a checkpoint. The first report is kept.
        first = {
            (error.rank, error.text, error.frame) if error.origin >= 0 else error: error
            for error in reversed(placed)
        }
        return tuple(reversed(first.values()))

    @property
    def timers(self) -> tuple[Error, ...]:
        """Return the stacks that a timer of the script printed."""
        return tuple(error for error in self.printed if is_timer(error))

    @property
    def memory_notes(self) -> tuple[str, ...]:
        """Return the lines of the kernel or of Slurm about memory that ran out."""
        lines = self.failure.last_lines if self.failure else ()
        return tuple(note for note in (*self.notes, self.reason, *lines) if _OUT_OF_MEMORY.search(note))

    def node(self, rank: int) -> str:
        return self.nodes[rank] if 0 <= rank < len(self.nodes) else ""

    def culprits(self, whys: Mapping[int, str]) -> tuple[Culprit, ...]:
        return tuple(Culprit(rank, self.node(rank), why) for rank, why in whys.items())

    def rank(self, error: Error) -> int:
        """Return the rank that printed an error; -1 if that is a launcher of several ranks."""
        return error.inner if self.per_node else error.rank

    def quoted(self, error: Error) -> str:
        return f"{self.name(error.rank, error.inner)}: {error.message}"

    def name(self, rank: int, inner: int = -1) -> str:
        """Return ``rank 3``, or ``node 3`` for the launcher of a node whose rank is unknown."""
        if inner >= 0:
            return f"rank {inner}"
        return f"{self.noun} {rank}"

    @property
    def noun(self) -> str:
        return "node" if self.per_node else "rank"

    def who(self, rank: int, inner: int = -1) -> str:
        """The same with the node."""
        is_launcher = self.per_node and inner < 0
        on_node = f" ({self.node(rank)})" if is_launcher else f" on {self.node(rank)}"
        return self.name(rank, inner) + on_node

    def several(self, errors: Iterable[Error]) -> str:
        """Return ``ranks 0-2 and 5``: the ranks that printed these errors."""
        listed = list(errors)
        if self.per_node and all(error.inner >= 0 for error in listed):
            return ranks_in_words({error.inner for error in listed})
        return ranks_in_words({error.rank for error in listed}, self.noun)
