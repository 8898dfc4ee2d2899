"""Which pairs are tested in which round before anything is known: matchings of a ring, and of all pairs."""

from __future__ import annotations

from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    def NamedTuple(name, fields):  # noqa: N802
        return namedtuple(name, [field for field, _ in fields])


Pair = NamedTuple("Pair", [("a", int), ("b", int)])
"""Two nodes that are tested together, and the link between them; given with the smaller number first.

A tuple, for there are 780,000 of them in a set of 1,250 nodes.
"""


def pair(a: int, b: int) -> Pair:
    """The link between two nodes, with the smaller number first; a node is no partner of itself."""
    if a == b:
        raise ValueError(f"node {a} cannot be paired with itself")
    return Pair(min(a, b), max(a, b))


def ring_rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """The links of the ring, each once, in the fewest rounds: 2 if it is even, 3 if odd, 1 for two nodes."""
    count = len(nodes)
    if count < 2:
        return ()
    links = [pair(nodes[at], nodes[(at + 1) % count]) for at in range(count if count > 2 else 1)]
    last = links.pop() if count % 2 and count > 2 else None
    rounds = [tuple(links[0::2]), tuple(links[1::2]), (last,) if last else ()]
    return tuple(one for one in rounds if one)


def all_rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Every pair once: N - 1 rounds, N for an odd number (the circle method; one node rests in each)."""
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _ in range(len(seats) - 1):
        across = zip(seats[:half], reversed(seats[half:]))
        rounds.append(tuple(pair(a, b) for a, b in across if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(one for one in rounds if one)
