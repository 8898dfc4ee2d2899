"""Read torch's message about a GPU that ran out of memory: what was asked for, and what fits; pure."""

from __future__ import annotations

import re

from clusterrun.model.frozen import frozen

_MEBIBYTES = {"bytes": 1 / (1 << 20), "KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
_AMOUNT = r"([\d.]+) (bytes|KiB|MiB|GiB)"
# The first pattern of each is that of torch 2.1 and later.
_PATTERNS = {
    "requested": (rf"Tried to allocate {_AMOUNT}",),
    "capacity": (rf"total capacity of {_AMOUNT}", rf"{_AMOUNT} total capacity"),
    "free": (rf"of which {_AMOUNT} is free", rf"{_AMOUNT} free"),
    "own": (rf"this process has {_AMOUNT} memory in use", rf"{_AMOUNT} reserved in total by PyTorch"),
    "unallocated": (rf"{_AMOUNT} is reserved by PyTorch but unallocated",),
}
# A process that holds less than this share of a full GPU was not the one that filled it.
_OWN_SHARE = 0.5


@frozen
class GpuMemory:
    """The numbers of one message, in MiB; None if the message does not hold them."""

    requested: float | None = None  # the allocation that failed
    capacity: float | None = None  # of the GPU
    free: float | None = None  # on the GPU
    own: float | None = None  # held by the process that printed the message
    unallocated: float | None = None  # held by that process, but in use by no tensor

    @property
    def is_held_by_others(self) -> bool:
        """Return whether other processes hold most of the GPU."""
        if self.capacity is None or self.own is None:
            return False
        others = self.capacity - (self.free or 0.0) - self.own
        return self.own < _OWN_SHARE * self.capacity and others > self.own

    @property
    def is_fragmented(self) -> bool:
        """Return whether the process held enough memory for the allocation, in pieces that are too small."""
        return self.requested is not None and (self.unallocated or 0.0) >= self.requested > 0


def gpu_memory(message: str) -> GpuMemory:
    """Return the numbers in a message of torch."""
    numbers: dict[str, float] = {}
    for name, patterns in _PATTERNS.items():
        match = next(filter(None, (re.search(pattern, message) for pattern in patterns)), None)
        if match:
            numbers[name] = float(match[1]) * _MEBIBYTES[match[2]]
    return GpuMemory(**numbers)


def what_fits(memory: GpuMemory) -> str:
    """Return in words how much was missing, and what to change; '' if the message holds no numbers."""
    if memory.requested is None or memory.capacity is None:
        return ""
    text = f"{_words(memory.requested)} more did not fit into {_words(memory.capacity)}"
    if memory.is_held_by_others:
        return f"{text}: other processes hold most of that GPU"
    if memory.is_fragmented:
        unallocated = _words(memory.unallocated or 0.0)
        setting = "--env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        return f"{text}, though {unallocated} of the process's memory was unused: {setting} may be enough"
    missing = max(0.0, memory.requested - (memory.free or 0.0))
    advice = "a smaller batch per rank, activation checkpointing, or sharding (FSDP)"
    return f"{text}: use at least {_words(missing)} less, by {advice}"


def _words(mebibytes: float) -> str:
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"
