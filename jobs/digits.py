"""Load the handwritten digits as tensors."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import pad

FILE = Path(__file__).resolve().parent / "data" / "digits.csv.gz"
SIDE = 8
CLASSES = 10
BRIGHTEST = 16
# Every fifth image is used for the accuracy only.
HELD_OUT = 5


@dataclass(frozen=True)
class Digits:
    """``images`` is (samples, 1, side, side) in 0 … 1, ``labels`` (samples,) in 0 … 9."""

    images: torch.Tensor
    labels: torch.Tensor
    enlarged: int = 1  # side of the square that each pixel becomes

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels at these indices."""
        images = self.images[indices]
        for side in (2, 3):
            images = images.repeat_interleave(self.enlarged, side)
        return images, self.labels[indices]

    def varied(self, images: torch.Tensor) -> torch.Tensor:
        """Return each image, shifted by up to one (enlarged) pixel."""
        return shifted(images, self.enlarged)


def load(dtype: torch.dtype = torch.float32, enlarged: int = 1, file: Path = FILE) -> tuple[Digits, Digits]:
    """Return training and held-out images, the same on every rank."""
    with gzip.open(file, "rt", newline="") as lines:
        rows = torch.tensor([[float(cell) for cell in row] for row in csv.reader(lines)], dtype=dtype)
    images = (rows[:, :-1] / BRIGHTEST).reshape(-1, 1, SIDE, SIDE)
    labels = rows[:, -1].long()
    held_out = torch.arange(len(rows)) % HELD_OUT == 0
    return (
        Digits(images[~held_out], labels[~held_out], enlarged),
        Digits(images[held_out], labels[held_out], enlarged),
    )


def shifted(images: torch.Tensor, far: int) -> torch.Tensor:
    """Return each image, shifted at random by up to ``far`` pixels in each direction."""
    side = images.shape[-1]
    rows, columns = torch.randint(0, 2 * far + 1, (2, len(images), 1, 1, 1))
    along = torch.arange(side)
    wide = side + 2 * far
    moved = pad(images, (far, far, far, far)).gather(
        2, (rows + along.view(1, 1, -1, 1)).expand(-1, 1, side, wide)
    )
    return moved.gather(3, (columns + along.view(1, 1, 1, -1)).expand(-1, 1, side, side))
