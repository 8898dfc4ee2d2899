"""Describe how a node and its ranks use their machine: one sample, and the mean of several."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.frozen import frozen, replace

# The GPU does not report it.
UNKNOWN = -1.0
# A GPU works from this activity of its memory on (per cent), or from this share of its power limit on.
LEAST_MEMORY_BUSY = 3.0
LEAST_POWER = 0.5


@frozen
class RankUse:
    """One rank with its child processes."""

    rank: int  # -1: no variable numbers it
    cores: float  # processor cores in use
    memory: int  # bytes of its own
    pid: int = 0  # 0: not reported


@frozen
class GpuUse:
    """One GPU. A value is -1 if the GPU does not report it."""

    index: int
    busy: float  # per cent of the time
    memory: float  # bytes
    memory_total: float  # bytes
    watts: float
    celsius: float
    uuid: str = ""
    memory_busy: float = UNKNOWN  # per cent of the time during which its memory was read or written
    watts_most: float = UNKNOWN  # its power limit

    @property
    def works(self) -> bool | None:
        """Return whether it computes or copies; None if it does not report enough.

        A kernel that waits for another rank keeps the GPU busy. It reads no memory and needs little power.
        """
        if self.busy < 0 or self.memory_busy < 0:
            return None
        needs_power = self.watts >= LEAST_POWER * self.watts_most > 0
        return self.busy > 0 and (self.memory_busy >= LEAST_MEMORY_BUSY or needs_power)


@frozen
class UsageMean:
    """Means since the ranks were started. A value is -1 if it was not measured."""

    seconds: float  # seconds since the start of the ranks
    cores: float  # of all ranks
    busy: float  # per cent of all GPUs
    most_cores: float = UNKNOWN  # highest sample of all ranks together
    most_memory: float = UNKNOWN  # bytes, highest sample of all ranks together
    most_busy: float = UNKNOWN  # per cent, highest sample of all GPUs together
    most_gpu_memory: float = UNKNOWN  # highest share of a GPU's memory, 0 to 1
    gpus: int = 0
    idle: int = -1  # number of GPUs that were never busy
    joules: float = UNKNOWN  # of the GPUs that report their power


@frozen
class NodeUse:
    """One node over ``seconds`` until ``at``."""

    node: str
    at: float  # seconds since the epoch on the node's clock
    seconds: float
    cores: float  # busy cores
    cores_total: int
    memory: int  # bytes in use
    memory_total: int  # bytes
    received: float  # bytes per second over all networks
    sent: float  # bytes per second over all networks
    ranks: tuple[RankUse, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    gpus_reason: str = ""  # why ``gpus`` is empty on a node with GPUs
    whole: UsageMean | None = None  # means since the start of the ranks
    FORMER_NAMES = {"gpus_reason": "gpus_said"}


def merged(uses: Sequence[NodeUse]) -> NodeUse:
    """Combine samples of one node: rates are means over time, memory is the maximum."""
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
    samples = [
        (weight, rank) for weight, use in zip(weights, uses) for rank in use.ranks if rank.rank == number
    ]
    total_weight = sum(weight for weight, _ in samples)
    cores = sum(weight * rank.cores for weight, rank in samples) / total_weight
    return RankUse(number, round(cores, 3), max(rank.memory for _, rank in samples))


def _gpu(last: GpuUse, uses: Sequence[NodeUse], weights: Sequence[float]) -> GpuUse:
    samples = [
        (weight, gpu) for weight, use in zip(weights, uses) for gpu in use.gpus if gpu.index == last.index
    ]

    def mean(field: str) -> float:
        values = [(weight, getattr(gpu, field)) for weight, gpu in samples if getattr(gpu, field) >= 0]
        total_weight = sum(weight for weight, _ in values)
        total: float = sum(weight * value for weight, value in values)
        return round(total / total_weight, 1) if total_weight else UNKNOWN

    memory = max(gpu.memory for _, gpu in samples)
    means = {name: mean(name) for name in ("busy", "watts", "celsius", "memory_busy")}
    return replace(last, memory=memory, **means)
