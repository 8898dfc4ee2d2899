"""Load the shipped book as windows of characters."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parent / "data" / "alice.txt.gz"
BLOCK = 64  # characters in a window
HELD_OUT = 0.1  # share of the book at its end, used for the accuracy only


@dataclass(frozen=True)
class Windows:
    """Windows of ``block`` characters, as numbers. The targets are the characters that follow."""

    characters: torch.Tensor
    stride: int  # characters from the start of a window to the start of the next
    block: int = BLOCK

    def __len__(self) -> int:
        return (len(self.characters) - self.block - 1) // self.stride + 1

    def at(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (samples, block) characters, and the character after each."""
        places = (indices * self.stride).unsqueeze(1) + torch.arange(self.block)
        return self.characters[places], self.characters[places + 1]

    def varied(self, characters: torch.Tensor) -> torch.Tensor:
        """Return the text unchanged."""
        return characters


def load(file: Path = FILE) -> tuple[Windows, Windows, int]:
    """Return training windows, held-out windows, and the number of different characters."""
    book = gzip.decompress(file.read_bytes()).decode("ascii")
    alphabet = {character: number for number, character in enumerate(sorted(set(book)))}
    numbers = torch.tensor([alphabet[character] for character in book])
    cut = int(len(numbers) * (1 - HELD_OUT))
    return Windows(numbers[:cut], BLOCK // 4), Windows(numbers[cut:], BLOCK), len(alphabet)
