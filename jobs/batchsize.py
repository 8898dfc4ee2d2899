"""Choose the global batch: the requested size, the size of the checkpoint, or the largest that fits."""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import nn

import memory
from dealing import Samples
from fitting import OnCPU, OnGPU, largest
from options import AUTO
from precision import Precision
from ranks import World, least_over_ranks, say
from tasks import summed_loss

MOMENTUM = 0.9


class Attempt:
    """Training steps on a copy of the network."""

    def __init__(self, network: nn.Module, samples: Samples, precision: Precision) -> None:
        self.network, self.samples, self.precision = network, samples, precision
        self.copy: nn.Module | None = None

    def prepare(self) -> None:
        """Make the copy and everything that does not depend on the batch: gradients and momenta."""
        self.copy = copy.deepcopy(self.network)
        self.optimizer = torch.optim.SGD(self.copy.parameters(), lr=0.0, momentum=MOMENTUM)
        self.scaler = self.precision.scaler()
        self(1)

    def __call__(self, size: int) -> None:
        """Run one step on ``size`` samples."""
        assert self.copy is not None, "prepare() comes first"
        chosen = torch.arange(size) % len(self.samples)
        inputs, targets = (tensor.to(self.precision.device) for tensor in self.samples.at(chosen))
        self.optimizer.zero_grad(set_to_none=False)
        with self.precision.cast():
            scores = self.copy(inputs)
        self.scaler.scale(summed_loss(scores, targets) / size).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def batch_size(
    options: argparse.Namespace, world: World, gpus: int, attempt: Attempt, order: dict[str, int] | None
) -> int:
    """Return the samples per step over all ranks, the same number on each rank.

    ``gpus``: GPUs over which a rank spreads its batch. ``order``: batch size and seed of the checkpoint.
    Raises RuntimeError if the checkpoint contradicts the options, or if not even one sample fits.
    """
    requested = options.batch_size
    if order is not None:
        size = order["batch_size"] if requested == AUTO else requested
        own = {"batch_size": size, "seed": options.seed}
        if own != order:
            raise RuntimeError(
                f"the checkpoint was made with {order}, this run has {own}: "
                "the order of the samples would differ; resume with the same, or name another "
                "--checkpoint-dir"
            )
        return order["batch_size"]
    if requested != AUTO:
        return int(requested)
    return fitting_batch(world, gpus * options.accumulate, attempt, options.memory_limit)


def fitting_batch(world: World, pieces: int, attempt: Attempt, limit: int | None) -> int:
    """Return the largest global batch that fits on every rank if each rank processes ``pieces`` in turn."""
    began, samples = time.perf_counter(), len(attempt.samples)
    every = pieces * world.size
    attempt.prepare()
    fits: OnCPU | OnGPU
    if world.device.type == "cuda":
        fits = OnGPU(attempt)
    else:
        fits = OnCPU(attempt, limit or memory.limit(world.local_size))
    least = least_over_ranks(world, largest(fits, -(-samples // every)))
    attempt.copy = None
    if not least:
        raise RuntimeError(
            f"not even one sample per rank fits into {fits.room}: take a smaller model, --amp bf16, "
            "or --strategy fsdp with a --batch-size in numbers"
        )
    batch = min(least * every, samples)
    say(
        world,
        f"batch size auto: {batch} ({least} per rank and micro-batch × {every}, {samples} samples in all), "
        f"found in {fits.tries} tries, {time.perf_counter() - began:.1f} s, within {fits.room} per rank",
    )
    return batch
