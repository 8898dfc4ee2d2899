"""Find the largest batch that fits in memory, by trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import memory

# The search ends if the largest size that fits is within 1/16 of the smallest that does not.
FINE = 16
# Share of the limit that a trial on a CPU may use. In a training the C library keeps memory between steps.
MARGIN = 0.8
# Trains one step on this many samples, on a copy.
Trial = Callable[[int], None]


def largest(fits: Callable[[int], bool], ceiling: int) -> int:
    """Return the largest size up to ``ceiling`` that fits, within 1/16; 0 if not even 1 fits.

    The size is doubled until it does not fit, then the gap is halved. So no trial exceeds twice the size
    that fits, and there are about ``2 log2(size)`` trials.
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
    """Decides whether a batch fits into a limit of memory, before the kernel kills the process.

    Memory grows in proportion to the batch. So a size is only tried if the last trial predicts that it fits.
    """

    trial: Trial
    limit: int  # bytes of the whole process
    base: int = field(default_factory=memory.resident)  # bytes that do not depend on the batch
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
        """Return a description of the limit."""
        return f"{self.limit / 2**20:.0f} MiB of memory"


@dataclass
class OnGPU:
    """Decides whether a batch fits into the GPU's memory, by trying it."""

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
        """Return a description of the limit."""
        _, total = torch.cuda.mem_get_info()
        return f"{total / 2**20:.0f} MiB of GPU memory"
