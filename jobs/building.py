"""Build model, optimizer, batches and precision."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from batchsize import MOMENTUM, Attempt, batch_size
from compiling import compiled
from dealing import GlobalBatches
from options import BUCKET_MB
from precision import Precision
from ranks import World, say
from strategies import Choice, bare, restore_optimizer, spread, whole_state
from tasks import Task


@dataclass(frozen=True)
class Trainer:
    """Everything that a training step needs."""

    world: World
    task: Task
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: GlobalBatches
    precision: Precision
    scaler: torch.amp.GradScaler
    accumulate: int

    @property
    def seed(self) -> int:
        """Return the seed of weights, order and random numbers."""
        return self.batches.seed

    @property
    def network(self) -> nn.Module:
        """Return the model without its wrapper for several devices."""
        return bare(self.model)

    @property
    def order(self) -> dict[str, int]:
        """Return the values that determine the order of samples. A resumed run must have the same."""
        return {"batch_size": self.batches.batch, "seed": self.batches.seed}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the step. Every rank must call it."""
        return {**whole_state(self.model, self.optimizer), "scaler": self.scaler.state_dict()}


def build(
    options: argparse.Namespace, world: World, choice: Choice, task: Task, start: dict[str, Any] | None
) -> Trainer:
    """Return a trainer for the chosen strategy, with the state of the checkpoint ``start``."""
    precision = Precision(options.amp, world.device)
    torch.manual_seed(options.seed)
    network = task.network().to(world.device, getattr(torch, options.dtype))
    if start:
        network.load_state_dict(start["model"])
    attempt = Attempt(network, task.training, precision)
    batch = batch_size(options, world, max(1, choice.gpus), attempt, start["order"] if start else None)
    model = spread(network, world, choice, options.bucket_mb, options.find_unused)
    for notice in notices(options, choice, precision, model):
        say(world, f"notice: {notice}")
    lr = options.lr if options.lr is not None else task.lr
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM)
    scaler = precision.scaler()
    if start:
        restore_optimizer(optimizer, start["optimizer"])
        scaler.load_state_dict(start["scaler"])
    batches = GlobalBatches(len(task.training), batch, options.seed)
    return Trainer(world, task, model, optimizer, batches, precision, scaler, options.accumulate)


def notices(
    options: argparse.Namespace, choice: Choice, precision: Precision, model: nn.Module
) -> Iterator[str]:
    """Compile the model if requested. Yield a notice for each option without the expected effect."""
    of_ddp = options.find_unused or options.bucket_mb != BUCKET_MB
    if of_ddp and choice.runs_as != "ddp":
        yield f"--bucket-mb and --find-unused are for DDP, and this run is {choice.runs_as}: no effect"
    slow = precision.notice()
    if slow:
        yield slow
    reason = compiled(model, precision.device) if options.compile else ""
    if reason:
        yield reason
