"""The shipped book as windows of characters; knows no model and no process group."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parent / "data" / "alice.txt.gz"
BLOCK = 64
"""Characters in a window."""
HELD_OUT = 0.1
"""The book's end, which is never trained on."""


@dataclass(frozen=True)
class Windows:
    """Every stretch of ``block`` characters in ``characters``, given as numbers; a target is the next one."""

    characters: torch.Tensor
    stride: int
    """Characters from the start of one window to the start of the next."""
    block: int = BLOCK

    def __len__(self) -> int:
        return (len(self.characters) - self.block - 1) // self.stride + 1

    def at(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(samples, block) characters, and for each the one that follows it."""
        places = (indices * self.stride).unsqueeze(1) + torch.arange(self.block)
        return self.characters[places], self.characters[places + 1]

    def varied(self, characters: torch.Tensor) -> torch.Tensor:
        """Text stays as it was written."""
        return characters


def load(file: Path = FILE) -> tuple[Windows, Windows, int]:
    """The windows to train on, those held out, and how many different characters there are."""
    book = gzip.decompress(file.read_bytes()).decode("ascii")
    alphabet = {character: number for number, character in enumerate(sorted(set(book)))}
    numbers = torch.tensor([alphabet[character] for character in book])
    cut = int(len(numbers) * (1 - HELD_OUT))
    return Windows(numbers[:cut], BLOCK // 4), Windows(numbers[cut:], BLOCK), len(alphabet)
