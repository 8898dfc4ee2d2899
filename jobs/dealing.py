"""Which rank sees which sample in which step, and the workers that load them; knows no model, no group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from seeds import seed_rank


class Samples(Protocol):
    """A set of samples that fits in memory: inputs and targets by index."""

    def __len__(self) -> int: ...

    def at(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and the targets at these indices, on the CPU."""

    def varied(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs as augmentation changes them, drawn from this process's random numbers."""


@dataclass(frozen=True)
class GlobalBatches:
    """The order in which all ranks together walk through the samples, and each rank's part of it.

    An epoch's order depends on seed and epoch alone, so every rank knows it without asking, and
    a batch holds the same samples at any world size. Within an epoch every sample goes to exactly
    one rank, once: there is no padding. The parts of a batch differ by at most one sample, and a
    part can be empty when a batch has fewer samples than there are ranks.
    """

    samples: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise ValueError(f"{self.samples} samples in batches of {self.batch}: both must be at least 1")

    @property
    def per_epoch(self) -> int:
        """Steps that an epoch takes: the same number on every rank."""
        return -(-self.samples // self.batch)

    def order(self, epoch: int) -> torch.Tensor:
        """All indices, shuffled for this epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.samples, generator=generator)

    def steps(self, first: int, last: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Each step from ``first`` up to ``last`` (not included), with the indices of its global batch."""
        order = torch.empty(0, dtype=torch.long)
        for step in range(first, last):
            epoch, place = divmod(step, self.per_epoch)
            if place == 0 or step == first:
                order = self.order(epoch)
            yield step, order[place * self.batch : (place + 1) * self.batch]


def part(batch: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """The indices of a global batch that this rank takes."""
    return batch[rank::size]


@dataclass(frozen=True)
class Dealt:
    """This rank's part of a step's global batch."""

    step: int
    total: int
    """Samples in the global batch, over all ranks."""
    inputs: torch.Tensor
    targets: torch.Tensor

    def split(self, pieces: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """As many micro-batches, one after another on the device; the last ones can be empty."""
        both = zip(self.inputs.tensor_split(pieces), self.targets.tensor_split(pieces))
        for inputs, targets in both:
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def pin_memory(self) -> Dealt:
        """The same in memory that a GPU copies from by itself; the loader calls it by this name."""
        return Dealt(self.step, self.total, self.inputs.pin_memory(), self.targets.pin_memory())


@dataclass(frozen=True)
class Dealer(Dataset[Dealt]):
    """Loads one rank's part of a batch; it may run in a worker process."""

    samples: Samples
    seed: int
    rank: int
    size: int
    vary: bool

    def __getitem__(self, key: tuple[int, torch.Tensor]) -> Dealt:
        """The part of the batch with these step and indices.

        The random numbers hang on the step, not on the worker that happens to load it: so any
        number of workers loads the same, also in a run that is resumed.
        """
        step, batch = key
        inputs, targets = self.samples.at(part(batch, self.rank, self.size))
        if self.vary:
            seed_rank(self.seed, self.rank, step, "loading")
            inputs = self.samples.varied(inputs)
        return Dealt(step, len(batch), inputs, targets)


def loaded(
    dealer: Dealer, steps: Iterable[tuple[int, torch.Tensor]], workers: int, pinned: bool
) -> Iterable[Dealt]:
    """Every step's part, in order, loaded by so many worker processes (0: by this one)."""
    # PyTorch's types want a Sampler; what it needs is to walk through the keys once.
    sampler: Any = steps
    parts: Iterable[Dealt] = DataLoader(
        dealer, batch_size=None, sampler=sampler, num_workers=workers, pin_memory=pinned
    )
    return parts
