"""The networks, in torch alone: a small CNN, a residual network, a small GPT; knows no data, no ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu, scaled_dot_product_attention

GROUPS = 8


class SmallCNN(nn.Module):
    """Two convolutions and two layers: 38,000 weights, enough for 8 × 8 digits."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
                nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
                nn.Sequential(nn.Linear(32 * (side // 2) ** 2, 64), nn.ReLU()),
            ]
        )
        self.head = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(samples, 1, side, side) → (samples, classes) scores."""
        for block in self.blocks:
            images = block(images)
        return self.head(images)


def norm(channels: int) -> nn.Module:
    """Normalised within each sample: batch statistics would differ with the number of ranks."""
    return nn.GroupNorm(GROUPS, channels)


class Residual(nn.Module):
    """Two convolutions and a way around them; the first one may halve the image."""

    def __init__(self, came: int, channels: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Sequential(
            nn.Conv2d(came, channels, 3, stride, padding=1, bias=False),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(channels),
        )
        # Each residual starts as the way around it (Goyal et al., 2017): deep networks begin calmly.
        nn.init.zeros_(self.straight[-1].weight)
        same = came == channels and stride == 1
        self.around = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(came, channels, 1, stride, bias=False), norm(channels))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(samples, came, side, side) → (samples, channels, side / stride, side / stride)."""
        return relu(self.straight(images) + self.around(images))


class ResNet(nn.Module):
    """A residual network of 18 layers (He et al., 2015) for small images, a quarter as wide."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), norm(width), nn.ReLU())
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        came = [width, *widths]
        self.blocks = nn.ModuleList(
            Residual(before, after, 1 if before == after else 2) for before, after in zip(came, widths)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(samples, 1, side, side) → (samples, classes) scores."""
        images = self.stem(images)
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean(dim=(2, 3)))


class Block(nn.Module):
    """Attention to what came before, then a small network for each character."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """(samples, characters, width) → the same shape."""
        seen = seen + self.dropout(self.attended(self.before_attention(seen)))
        return seen + self.dropout(self.layers(self.before_layers(seen)))

    def attended(self, seen: torch.Tensor) -> torch.Tensor:
        """Causal self-attention, of several heads."""
        samples, characters, width = seen.shape
        split = self.asked(seen).view(samples, characters, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.mixed(found.transpose(1, 2).reshape(samples, characters, width))


class GPT(nn.Module):
    """A decoder-only transformer over characters (after GPT-2, Radford et al., 2019): 800,000 weights."""

    def __init__(
        self, alphabet: int, block: int, width: int = 128, layers: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(alphabet, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads=4, dropout=dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, alphabet, bias=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """(samples, characters) numbers → (samples, characters, alphabet) scores for the next one."""
        places = torch.arange(characters.shape[1], device=characters.device)
        seen = self.characters(characters) + self.places(places)
        for block in self.blocks:
            seen = block(seen)
        return self.head(self.norm(seen))
