"""What a node and its ranks use of their machine: one sample, and the mean of many; values only."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.frozen import frozen, replace

UNKNOWN = -1.0
"""Where a GPU does not say."""


@frozen
class RankUse:
    """One rank with all that it has started: processor cores in use, bytes of memory of its own."""

    rank: int
    cores: float
    memory: int


@frozen
class GpuUse:
    """One GPU: per cent of the time busy, bytes of memory, watts, degrees Celsius; -1: it does not say."""

    index: int
    busy: float
    memory: float
    memory_total: float
    watts: float
    celsius: float
    uuid: str = ""


@frozen
class UsageMean:
    """Means since the ranks were started, ``seconds`` ago: cores of all ranks, per cent of all GPUs.

    ``most_…`` are the highest of a sample: cores and bytes of memory of all ranks at once, per cent of
    all GPUs, the fullest GPU's memory (of 1). ``idle`` is how many of ``gpus`` were never busy. ``joules``
    are the GPUs', as far as they say what they draw. -1: not measured.
    """

    seconds: float
    cores: float
    busy: float
    most_cores: float = UNKNOWN
    most_memory: float = UNKNOWN
    most_busy: float = UNKNOWN
    most_gpu_memory: float = UNKNOWN
    gpus: int = 0
    idle: int = -1
    joules: float = UNKNOWN


@frozen
class NodeUse:
    """One node over ``seconds`` until ``at`` (seconds since the epoch, its own clock).

    ``cores`` of ``cores_total`` are busy with anything, ``memory`` bytes of ``memory_total`` taken;
    ``received`` and ``sent`` are bytes per second over all networks. ``gpus_said`` is why there is
    nothing in ``gpus`` on a node that should have some.
    """

    node: str
    at: float
    seconds: float
    cores: float
    cores_total: int
    memory: int
    memory_total: int
    received: float
    sent: float
    ranks: tuple[RankUse, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    gpus_said: str = ""
    whole: UsageMean | None = None


def merged(uses: Sequence[NodeUse]) -> NodeUse:
    """Samples of one node as one: rates are means over time, memory is the most that was seen."""
    last, seconds = uses[-1], sum(use.seconds for use in uses)
    if len(uses) == 1 or seconds <= 0:
        return last
    weights = [use.seconds / seconds for use in uses]

    def mean(values: Sequence[float]) -> float:
        return round(sum(weight * value for weight, value in zip(weights, values)), 3)

    return replace(
        last,
        seconds=seconds,
        cores=mean([use.cores for use in uses]),
        memory=max(use.memory for use in uses),
        received=mean([use.received for use in uses]),
        sent=mean([use.sent for use in uses]),
        ranks=tuple(_rank(rank.rank, uses, weights) for rank in last.ranks),
        gpus=tuple(_gpu(gpu, uses, weights) for gpu in last.gpus),
    )


def _rank(number: int, uses: Sequence[NodeUse], weights: Sequence[float]) -> RankUse:
    seen = [(weight, one) for weight, use in zip(weights, uses) for one in use.ranks if one.rank == number]
    whole = sum(weight for weight, _ in seen)
    cores = sum(weight * one.cores for weight, one in seen) / whole
    return RankUse(number, round(cores, 3), max(one.memory for _, one in seen))


def _gpu(last: GpuUse, uses: Sequence[NodeUse], weights: Sequence[float]) -> GpuUse:
    seen = [
        (weight, one) for weight, use in zip(weights, uses) for one in use.gpus if one.index == last.index
    ]

    def mean(field: str) -> float:
        known = [(weight, getattr(one, field)) for weight, one in seen if getattr(one, field) >= 0]
        whole = sum(weight for weight, _ in known)
        return round(sum(weight * value for weight, value in known) / whole, 1) if whole else UNKNOWN

    memory = max(one.memory for _, one in seen)
    return replace(last, busy=mean("busy"), watts=mean("watts"), celsius=mean("celsius"), memory=memory)
