"""The arithmetic of communication and sharing, each formula once; pure, knows no run and no table.

Sources: ring all-reduce as in Patarasuk and Yuan (2009): every rank sends and receives
2 (n - 1) / n of the data; reduce-scatter and all-gather are its two halves.
"""

from __future__ import annotations

import math

from clusterrun.model.world import ring_share

# Bytes of gradients that DDP sends together.
BUCKET = 25 * 2**20
# The share of a step's computing that is the backward pass, behind which DDP's sending can hide.
BACKWARD = 2 / 3


def all_reduce(size: float, ranks: int, bandwidth: float, latency: float = 0.0) -> float:
    """Return the seconds to sum ``size`` bytes over all ranks, in DDP's buckets; bandwidth in bytes/s."""
    if ranks < 2:
        return 0.0
    return latency * math.ceil(size / BUCKET) + ring_share(ranks) * size / bandwidth


def sharded(weights: float, gradients: float, ranks: int, bandwidth: float, latency: float = 0.0) -> float:
    """Return the seconds in which FSDP gathers the weights twice, and sums and scatters the gradients.

    ``weights`` and ``gradients`` are in bytes. Each of the three steps costs half of an all-reduce.
    """
    return all_reduce(weights + gradients / 2, ranks, bandwidth, latency)


def exposed(sending: float, computing: float, overlaps: bool) -> float:
    """Return the part of ``sending`` that a step waits for, if the backward pass ``overlaps`` with it."""
    return max(0.0, sending - BACKWARD * computing) if overlaps else sending
