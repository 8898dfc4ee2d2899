"""What tests of nodes observed. Observations are appended and never changed."""

from __future__ import annotations

from collections import namedtuple

from clusterrun.model.frozen import frozen

Pair = namedtuple("Pair", ["a", "b"])
"""Two nodes that are tested together, the smaller number first. A tuple: 1,250 nodes have 780,000 pairs."""


def pair(a: int, b: int) -> Pair:
    """Return the pair of two different nodes, with the smaller number first."""
    if a == b:
        raise ValueError(f"node {a} cannot be paired with itself")
    return Pair(min(a, b), max(a, b))


@frozen
class GroupTest:
    """The outcome of one collective test of a group of nodes."""

    nodes: tuple[int, ...]
    passed: bool | None  # None: inconclusive, because a member was lost
    rate: float | None = None  # bus bandwidth in GB/s
    wrong: str = ""  # how a sum differed
    starved: bool = False  # its ranks waited for processors, so the network is at least this fast
    kind: str = ""
    seconds: float = 0.0
    ways: tuple[tuple[int, float], ...] = ()  # of a pair: GB/s of what each node sent
    why: str = ""  # another reason to fail
    transports: tuple[tuple[int, str], ...] = ()  # by node: the network that NCCL chose

    @property
    def is_good(self) -> bool:
        return bool(self.passed) and not self.wrong
