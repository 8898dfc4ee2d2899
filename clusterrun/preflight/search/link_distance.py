"""Links of different kinds: by how many switches are between their ends, and what each kind reaches."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.preflight.thresholds import median_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterrun.preflight.search.schedule import Pair

    Distance = Callable[[Pair], int]


def same(link: Pair) -> int:
    """All links are alike: nothing is known of the switches."""
    return 0


def switches(address: str) -> tuple[str, ...]:
    """The switches above a node, the topmost first, from ``SLURM_TOPOLOGY_ADDR`` (``spine.leaf3.n0007``)."""
    return tuple(address.split(".")[:-1])


def levels(one: Sequence[str], other: Sequence[str]) -> int:
    """How many levels two nodes must go up to meet; 0 under one switch, or where either is not known."""
    if not one or not other:
        return 0
    common = 0
    for mine, its in zip(one, other):
        if mine != its:
            break
        common += 1
    return max(len(one), len(other)) - common


@frozen
class LinkDistance:
    """Links over so many levels: how many were timed, the median of their best rates in GB/s.

    ``factor`` makes its rates comparable with those of the fastest kind; 1 where it is as fast.
    """

    levels: int
    links: int
    median: float
    factor: float


def kinds_of(best: Mapping[Pair, float], distance: Distance, slower: float) -> dict[int, LinkDistance]:
    """Each kind by its levels; ``slower`` is the share from which on it counts as slower than the fastest."""
    rates: dict[int, list[float]] = {}
    for link, rate in best.items():
        rates.setdefault(distance(link), []).append(rate)
    medians = {kind: median_of(known) for kind, known in rates.items()}
    fastest = max(medians.values(), default=0.0)
    return {
        kind: LinkDistance(kind, len(rates[kind]), median, _factor(median, fastest, slower))
        for kind, median in sorted(medians.items())
    }


def _factor(median: float, fastest: float, slower: float) -> float:
    return fastest / median if 0 < median < fastest * (1 - slower) else 1.0
