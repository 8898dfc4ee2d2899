"""The reference training script: handwritten digits under DDP; knows torch, not clusterrun.

    clusterrun submit --nodes 4 --gpus 8 jobs/train.py --epochs 20     on Slurm, NCCL
    clusterrun submit --nodes 2 --ranks-per-node 2 jobs/train.py       CPU ranks, gloo
    torchrun --nproc-per-node 4 jobs/train.py                          under torch's own launcher
    python jobs/train.py                                               alone

The same seed and global batch give the same training at any number of ranks, but for rounding:
a step's gradient is the mean over the global batch, however its samples are dealt out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel

import checkpoints
from digits import CLASSES, SIDE, Digits, GlobalBatches, load, part
from ranks import World, from_leader, joined, seed_rank, sum_over_ranks

DTYPES = {"float32": torch.float32, "float64": torch.float64}
MOMENTUM = 0.9
SPEAK_EVERY = 10
"""Progress is printed about this many times in a run."""


class Network(nn.Module):
    """Two convolutions and two layers: 37,000 weights, enough for 8 × 8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 2) ** 2, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(samples, 1, 8, 8) → (samples, 10) scores."""
        return self.layers(images)


@dataclass(frozen=True)
class Trainer:
    """What a step needs, put together once."""

    world: World
    model: nn.Module
    optimizer: torch.optim.Optimizer
    digits: Digits
    batches: GlobalBatches
    augment: bool

    def step(self, number: int, batch: torch.Tensor) -> torch.Tensor:
        """Learn from this rank's part of a global batch; the result is the loss on that part, summed."""
        seed_rank(self.batches.seed, self.world.rank, number)
        images, labels = self.digits.at(part(batch, self.world.rank, self.world.size), self.world.device)
        scores = self.model(shifted(images) if self.augment else images)
        loss = cross_entropy(scores, labels, reduction="sum")
        self.optimizer.zero_grad()
        # DDP takes the mean over ranks; parts may differ in size, so the mean over samples is made here.
        (loss * self.world.size / len(batch)).backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, but for the step."""
        return {"model": bare(self.model).state_dict(), "optimizer": self.optimizer.state_dict()}


def bare(model: nn.Module) -> nn.Module:
    """The network itself, without what spreads it over ranks: checkpoints fit any world size."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to one pixel, as this rank's random numbers say."""
    rows, columns = torch.randint(0, 3, (2, len(images), 1, 1, 1)).to(images.device)
    along = torch.arange(SIDE, device=images.device)
    moved = pad(images, (1, 1, 1, 1)).gather(
        2, (rows + along.view(1, 1, -1, 1)).expand(-1, 1, SIDE, SIDE + 2)
    )
    return moved.gather(3, (columns + along.view(1, 1, 1, -1)).expand(-1, 1, SIDE, SIDE))


def build(options: argparse.Namespace, world: World, digits: Digits, start: dict[str, Any] | None) -> Trainer:
    """The model, spread over the ranks, and its optimizer, as they were at the checkpoint if there is one."""
    torch.manual_seed(options.seed)
    model: nn.Module = Network().to(world.device, DTYPES[options.dtype])
    if start:
        model.load_state_dict(start["model"])
    if world.launched:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=MOMENTUM)
    if start:
        optimizer.load_state_dict(start["optimizer"])
    batches = GlobalBatches(len(digits), options.batch_size, options.seed)
    return Trainer(world, model, optimizer, digits, batches, options.augment)


@torch.no_grad()
def accuracy(world: World, model: nn.Module, digits: Digits) -> float:
    """The share of images named rightly; every rank looks at its own part of them."""
    images, labels = digits.at(part(torch.arange(len(digits)), world.rank, world.size), world.device)
    right = bare(model)(images).argmax(dim=1).eq(labels).sum().item()
    (total,) = sum_over_ranks(world, right)
    return total / len(digits)


def train(options: argparse.Namespace, trainer: Trainer, first: int, last: int) -> None:
    """Take the steps, write checkpoints, and say how it goes."""
    world, every = trainer.world, max(1, (last - first) // SPEAK_EVERY)
    loss, seen, since = torch.zeros((), device=world.device), 0, time.perf_counter()
    for step, batch in trainer.batches.steps(first, last):
        loss = loss + trainer.step(step, batch)
        seen += len(batch)
        done = step + 1
        if options.checkpoint_dir and world.leads and (done == last or done % options.checkpoint_every == 0):
            state = {**trainer.state(), "step": done, "order": order(options)}
            checkpoints.write(options.checkpoint_dir, done, state)
        if (done - first) % every == 0 or done == last:
            (total,) = sum_over_ranks(world, loss.item())
            seconds = time.perf_counter() - since
            say(world, f"step {done}/{last} loss {total / seen:.4f} samples/s {seen / seconds:.0f}")
            loss, seen, since = torch.zeros((), device=world.device), 0, time.perf_counter()


def order(options: argparse.Namespace) -> dict[str, int]:
    """What the order of the samples hangs on: it must be the same when a run is resumed."""
    return {"batch_size": options.batch_size, "seed": options.seed}


def resumed(options: argparse.Namespace, world: World) -> dict[str, Any] | None:
    """The state to go on from, found by rank 0 and sent to all: only its machine needs the directory."""
    if not options.resume:
        return None
    state = from_leader(world, checkpoints.newest(options.checkpoint_dir) if world.leads else None)
    if state and state["order"] != order(options):
        raise RuntimeError(
            f"the checkpoint was made with {state['order']}, this run has {order(options)}: "
            "the order of the samples would differ; resume with the same, or name another --checkpoint-dir"
        )
    say(
        world,
        f"resuming after step {state['step']}" if state else "no checkpoint to resume from: starting anew",
    )
    return state


def say(world: World, line: str) -> None:
    """One line for all ranks, from rank 0."""
    if world.leads:
        print(line, flush=True)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; a wrong one ends the process with code 2."""
    reader = argparse.ArgumentParser(
        description="Train a small network on handwritten digits, on any number of ranks."
    )
    reader.add_argument(
        "--epochs", type=positive, default=20, help="times through the data (default: %(default)s)"
    )
    reader.add_argument(
        "--steps", type=positive, help="stop after this many steps in all, whatever --epochs says"
    )
    reader.add_argument(
        "--batch-size", type=positive, default=64, help="samples per step, over all ranks (%(default)s)"
    )
    reader.add_argument("--lr", type=float, default=0.05, help="learning rate (default: %(default)s)")
    reader.add_argument(
        "--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)"
    )
    reader.add_argument(
        "--augment", action="store_true", help="move images by up to a pixel, at random per rank"
    )
    reader.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s"
    )
    reader.add_argument("--dtype", choices=tuple(DTYPES), default="float32", help="default: %(default)s")
    reader.add_argument(
        "--checkpoint-dir", type=Path, help="where checkpoints go; none are written without it"
    )
    reader.add_argument(
        "--checkpoint-every", type=positive, default=100, metavar="STEPS", help="default: %(default)s"
    )
    reader.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint, if there is one"
    )
    options = reader.parse_args(arguments)
    if options.resume and not options.checkpoint_dir:
        reader.error("--resume needs --checkpoint-dir, where the checkpoints are")
    return options


def run(options: argparse.Namespace, world: World) -> None:
    """Train, then print the accuracy on images never trained on."""
    training, held_out = load(DTYPES[options.dtype])
    start = resumed(options, world)
    trainer = build(options, world, training, start)
    first = start["step"] if start else 0
    last = options.steps or options.epochs * trainer.batches.per_epoch
    began = time.perf_counter()
    train(options, trainer, first, last)
    seconds = time.perf_counter() - began
    reached = accuracy(world, trainer.model, held_out)
    say(world, f"trained {max(0, last - first)} steps on {world.size} ranks in {seconds:.1f} s")
    say(world, f"accuracy {reached:.4f}")


@record
def main(arguments: Sequence[str] | None = None) -> None:
    """Join the other ranks, say on what this one computes, and run."""
    options = parse(arguments)
    with joined(options.device) as world:
        print(world, flush=True)
        run(options, world)


if __name__ == "__main__":
    main()
