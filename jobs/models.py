"""Define the networks: a small CNN, a residual network and a small GPT."""

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
    """Return a normalisation within each sample. Batch statistics would depend on the number of ranks."""
    return nn.GroupNorm(GROUPS, channels)


class Residual(nn.Module):
    """Two convolutions and a shortcut. The first convolution may halve the image."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(channels),
        )
        # Each block starts as its shortcut, so that deep networks start stably (Goyal et al., 2017).
        nn.init.zeros_(self.straight[-1].weight)
        same = inputs == channels and stride == 1
        self.around = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), norm(channels))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(samples, inputs, side, side) → (samples, channels, side / stride, side / stride)."""
        return relu(self.straight(images) + self.around(images))


class ResNet(nn.Module):
    """A residual network of 18 layers (He et al., 2015) for small images, a quarter as wide."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), norm(width), nn.ReLU())
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        inputs = [width, *widths]
        self.blocks = nn.ModuleList(
            Residual(before, after, 1 if before == after else 2) for before, after in zip(inputs, widths)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(samples, 1, side, side) → (samples, classes) scores."""
        images = self.stem(images)
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean(dim=(2, 3)))


class Block(nn.Module):
    """Attention to the characters before, then a small network for each character."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projection, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(samples, characters, width) → the same shape."""
        values = values + self.dropout(self.attended(self.before_attention(values)))
        return values + self.dropout(self.layers(self.before_layers(values)))

    def attended(self, values: torch.Tensor) -> torch.Tensor:
        """Return the causal self-attention of several heads."""
        samples, characters, width = values.shape
        split = self.projection(values).view(samples, characters, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attention = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.mixed(attention.transpose(1, 2).reshape(samples, characters, width))


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
        values = self.characters(characters) + self.places(places)
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))
