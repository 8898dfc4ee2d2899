"""The handwritten digits as tensors, and which rank sees which; knows no model and no process group."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parent / "data" / "digits.csv.gz"
SIDE = 8
CLASSES = 10
BRIGHTEST = 16
HELD_OUT = 5
"""Every fifth image is kept for the accuracy and never trained on."""


@dataclass(frozen=True)
class Digits:
    """``images`` is (samples, 1, 8, 8) in 0 … 1, ``labels`` (samples,) in 0 … 9."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The images and labels at these indices, on the device."""
        return self.images[indices].to(device), self.labels[indices].to(device)


def load(dtype: torch.dtype = torch.float32, file: Path = FILE) -> tuple[Digits, Digits]:
    """Training and held-out images, the same on every rank."""
    with gzip.open(file, "rt", newline="") as lines:
        rows = torch.tensor([[float(cell) for cell in row] for row in csv.reader(lines)], dtype=dtype)
    images = (rows[:, :-1] / BRIGHTEST).reshape(-1, 1, SIDE, SIDE)
    labels = rows[:, -1].long()
    held_out = torch.arange(len(rows)) % HELD_OUT == 0
    return Digits(images[~held_out], labels[~held_out]), Digits(images[held_out], labels[held_out])


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
