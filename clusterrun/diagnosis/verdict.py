"""The parts of a diagnosis: values for the client, its JSON and its text."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import lru_cache

from clusterrun.model import contract
from clusterrun.model.frozen import frozen


class Verdict(str, enum.Enum):
    """The verdict on a run. Equal to its word."""

    NEVER_ARRIVED = "rank never arrived"
    LINK = "link"
    MISMATCH = "mismatch"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    SLOW = "slow rank"
    WAITING = "all wait"
    ALONE = "training alone"
    NOTHING = "nothing wrong"
    NOT_RUNNING = "not running"
    UNDETERMINED = "undetermined"

    def __str__(self) -> str:
        """Return the word."""
        return self.value


@frozen
class Culprit:
    """A rank to blame, or with ``rank`` -1 a node or an end of a link."""

    rank: int
    node: str
    why: str


@frozen
class Stacks:
    """Ranks (folded, ``0-2,5``) whose main threads have the same stack, innermost frame first."""

    ranks: str
    stack: tuple[str, ...]


@frozen
class Diagnosis:
    """The cause of a hang or a failure, and the remedy."""

    verdict: Verdict
    message: str  # the verdict as a sentence
    culprits: tuple[Culprit, ...] = ()  # the ranks or nodes to blame
    groups: tuple[Stacks, ...] = ()  # the stacks of running ranks
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    at: float = 0.0  # when it was made, in seconds since the epoch
    certainty: int = 0  # of the rule that decided it, from 0 to 100 (`diagnosis/hypothesis.py`); 0: unknown
    format: int = contract.FORMAT
    FORMER_NAMES = {"message": "said"}


def ranks_in_words(ranks: Iterable[int], noun: str = "rank") -> str:
    """Return ``rank 3`` or ``ranks 0-2 and 5``."""
    ranks = tuple(ranks)
    parts = folded(ranks).split(",")
    if len(ranks) == 1:
        return f"{noun} {parts[0]}"
    if len(parts) > 8:
        return f"{noun}s {', '.join(parts[:8])} and more, {len(ranks)} in all"
    return f"{noun}s " + (f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0])


def folded(ranks: Iterable[int]) -> str:
    """Return ``0-2,5``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


@lru_cache(maxsize=1024)
def unfolded(text: str) -> tuple[int, ...]:
    """Return the ranks of a text that ``folded`` wrote; () for any other text."""
    ranks: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return ()
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)
