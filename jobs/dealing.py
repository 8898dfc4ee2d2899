"""Assign the samples of each step to ranks, and load them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from seeds import seed_rank


class Samples(Protocol):
    """A set of samples in memory, with inputs and targets by index."""

    def __len__(self) -> int: ...

    def at(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets at these indices, on the CPU."""

    def varied(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return augmented inputs, with random numbers of this process."""


@dataclass(frozen=True)
class GlobalBatches:
    """The order of the samples, and each rank's part of a batch.

    The order of an epoch depends only on seed and epoch. Every rank computes it by itself, and a batch
    has the same samples at any world size. Within an epoch exactly one rank gets each sample, without
    padding. The parts of a batch differ by at most one sample. A part is empty if a batch has fewer
    samples than there are ranks.
    """

    samples: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise ValueError(f"{self.samples} samples in batches of {self.batch}: both must be at least 1")

    @property
    def per_epoch(self) -> int:
        """Return the steps of an epoch, the same number on every rank."""
        return -(-self.samples // self.batch)

    def order(self, epoch: int) -> torch.Tensor:
        """Return all indices, shuffled for this epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.samples, generator=generator)

    def steps(self, first: int, last: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each step from ``first`` to ``last`` - 1 with the indices of its global batch."""
        order = torch.empty(0, dtype=torch.long)
        for step in range(first, last):
            epoch, place = divmod(step, self.per_epoch)
            if place == 0 or step == first:
                order = self.order(epoch)
            yield step, order[place * self.batch : (place + 1) * self.batch]


def part(batch: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Return the indices of a global batch for this rank."""
    return batch[rank::size]


@dataclass(frozen=True)
class Dealt:
    """This rank's part of a step's global batch."""

    step: int
    total: int  # samples in the global batch, over all ranks
    inputs: torch.Tensor
    targets: torch.Tensor

    def split(self, pieces: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this many micro-batches on the device. The last ones may be empty."""
        both = zip(self.inputs.tensor_split(pieces), self.targets.tensor_split(pieces))
        for inputs, targets in both:
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def pin_memory(self) -> Dealt:
        """Return a copy in pinned memory. The DataLoader calls this method."""
        return Dealt(self.step, self.total, self.inputs.pin_memory(), self.targets.pin_memory())


@dataclass(frozen=True)
class Dealer(Dataset[Dealt]):
    """Load one rank's part of a batch. It may run in a worker process."""

    samples: Samples
    seed: int
    rank: int
    size: int
    vary: bool

    def __getitem__(self, key: tuple[int, torch.Tensor]) -> Dealt:
        """Return the part of the batch with this step and these indices.

        The random numbers depend on the step, not on the worker. So every number of workers loads the
        same samples, also in a resumed run.
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
    """Return the parts of all steps in order, loaded by ``workers`` processes; 0: by this process."""
    # The type hint demands a Sampler. The DataLoader only iterates over the keys.
    sampler: Any = steps
    parts: Iterable[Dealt] = DataLoader(
        dealer, batch_size=None, sampler=sampler, num_workers=workers, pin_memory=pinned
    )
    return parts
