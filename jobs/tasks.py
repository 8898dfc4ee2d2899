"""Define the training tasks: network, data, unit and learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import digits
import text
from dealing import Samples
from models import GPT, ResNet, SmallCNN

# The residual network needs 32 × 32 images.
ENLARGED = 4


@dataclass(frozen=True)
class Task:
    """A task with its data loaded."""

    network: Callable[[], nn.Module]
    training: Samples
    held_out: Samples
    unit: str  # ``images`` or ``tokens``
    per_sample: int  # units per sample
    lr: float  # for SGD with momentum


def small_cnn(dtype: torch.dtype) -> Task:
    """Handwritten digits, 8 × 8: seconds on a CPU."""
    training, held_out = digits.load(dtype)
    return Task(lambda: SmallCNN(digits.SIDE, digits.CLASSES), training, held_out, "images", 1, 0.05)


def resnet(dtype: torch.dtype) -> Task:
    """The digits at 32 × 32: as much work per image as CIFAR-10."""
    training, held_out = digits.load(dtype, ENLARGED)
    return Task(lambda: ResNet(digits.CLASSES), training, held_out, "images", 1, 0.05)


def gpt(_: torch.dtype) -> Task:
    """The next character of a book."""
    training, held_out, alphabet = text.load()
    return Task(lambda: GPT(alphabet, text.BLOCK), training, held_out, "tokens", text.BLOCK, 0.1)


TASKS = {"cnn": small_cnn, "resnet": resnet, "gpt": gpt}


def summed_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, the mean over a sample's targets, summed over samples; in float32 or better."""
    exact = scores.flatten(0, -2).to(torch.promote_types(scores.dtype, torch.float32))
    return cross_entropy(exact, targets.flatten(), reduction="sum") / targets.shape[1:].numel()
