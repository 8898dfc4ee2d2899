"""The largest batch that fits, found by trying; knows no task, no data and no ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import memory

FINE = 16
"""The search ends when what is known to fit is within this part of what is known not to."""
MARGIN = 0.8
"""A CPU trial may take this much of the room: in a training, the C library keeps memory from step to step."""
Trial = Callable[[int], None]
"""Trains one step on so many samples, on something that is thrown away after."""


def largest(fits: Callable[[int], bool], ceiling: int) -> int:
    """The largest size up to ``ceiling`` that fits, within 1/16; 0 when not even 1 does.

    Doubled until it does not fit, then the gap is halved: so it never asks for more than twice
    what fits, and about ``2 log2`` of it times.
    """
    good, bad = 0, ceiling + 1
    size = 1
    while good < ceiling:
        if fits(size):
            good = size
        else:
            bad = size
        if bad - good <= max(1, good // FINE):
            break
        doubled = min(2 * good, ceiling) if bad > ceiling else 0
        size = doubled or (good + bad) // 2
    return good


@dataclass
class OnCPU:
    """Whether a batch fits into a limit of memory, told before the kernel would end the process.

    A size is tried only when what the last one took says that it will fit: what a step takes grows
    with the batch in proportion.
    """

    trial: Trial
    limit: int
    """Bytes that the process may hold in all."""
    base: int = field(default_factory=memory.resident)
    """Bytes that it holds whatever the batch."""
    size: int = 0
    took: int = 0
    tries: int = 0

    def __call__(self, size: int) -> bool:
        room = MARGIN * (self.limit - self.base)
        if self.size and self.took * size / self.size > room:
            return False
        self.tries += 1
        peak = memory.peak_of(lambda: self.trial(size))
        self.size, self.took = size, max(0, peak - self.base)
        return peak - self.base <= room

    @property
    def room(self) -> str:
        """What it had to fit into, for a reader."""
        return f"{self.limit / 2**20:.0f} MiB of memory"


@dataclass
class OnGPU:
    """Whether a batch fits into the GPU's memory: it is tried, and PyTorch says so when it does not."""

    trial: Trial
    tries: int = 0

    def __call__(self, size: int) -> bool:
        self.tries += 1
        try:
            self.trial(size)
            torch.cuda.synchronize()
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()
        return True

    @property
    def room(self) -> str:
        """What it had to fit into, for a reader."""
        _, total = torch.cuda.mem_get_info()
        return f"{total / 2**20:.0f} MiB of GPU memory"
