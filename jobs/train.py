"""The reference training script: one model, data and loop under every strategy; knows no launcher.

    clusterrun submit --nodes 4 --gpus 8 jobs/train.py --epochs 20     on Slurm, NCCL
    clusterrun submit --nodes 2 --ranks-per-node 2 jobs/train.py       CPU ranks, gloo
    torchrun --nproc-per-node 4 jobs/train.py                          under torch's own launcher
    python jobs/train.py                                               alone

The same seed and global batch give the same training at any number of ranks and under any
strategy, but for rounding: a step's gradient is the mean over the global batch, however its
samples are dealt out.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import torch
from torch.distributed.elastic.multiprocessing.errors import record

import options as command_line
import profiling
import spawning
from building import Trainer, build
from compiling import as_it_is
from dealing import Dealer, Dealt, loaded, part
from pace import Pace
from ranks import World, joined, place, say, sum_over_ranks
from seeds import repeat_exactly, seed_rank
from strategies import Choice, chosen, digest, gradients_kept
from surviving import Keeper
from tasks import TASKS, Task, summed_loss

SPEAK_EVERY = 10
"""Progress is printed about this many times in a run."""
EVALUATED = (16, 256)
"""The accuracy is taken in pieces as large as a step's; at least and at most so many samples."""


def step(trainer: Trainer, dealt: Dealt) -> torch.Tensor:
    """Learn from this rank's part of a global batch; the result is the loss on that part, summed."""
    world, model = trainer.world, trainer.model
    seed_rank(trainer.seed, world.rank, dealt.step)
    whole = torch.zeros((), device=world.device)
    trainer.optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(dealt.split(trainer.accumulate, world.device), 1):
        with gradients_kept(model, kept=number < trainer.accumulate):
            with trainer.precision.cast():
                scores = model(inputs)
            loss = summed_loss(scores, targets)
            # DDP takes the mean over ranks; parts may differ in size, so the mean over samples is made here.
            trainer.scaler.scale(loss * world.size / dealt.total).backward()
        whole += loss.detach()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    return whole


def train(
    options: argparse.Namespace, trainer: Trainer, keeper: Keeper, steps: range, profile: profiling.Profile
) -> Pace:
    """Take the steps, keep what must be kept, and say how it goes; ends early where that is wanted."""
    first, last = steps.start, steps.stop
    world, every = trainer.world, max(1, (last - first) // SPEAK_EVERY)
    dealer = Dealer(trainer.task.training, options.seed, world.rank, world.size, options.augment)
    pace = Pace(world.device, min(options.warm_up, (last - first) // 2))
    loss, seen = torch.zeros((), device=world.device), 0
    batches = trainer.batches.steps(first, last)
    for dealt in loaded(dealer, batches, options.workers, pinned=world.device.type == "cuda"):
        loss += step(trainer, dealt)
        seen += dealt.total
        pace.stepped(dealt.total)
        profile.stepped()
        done = dealt.step + 1
        keeper.stepped(done, last, lambda: {**trainer.state(), "order": trainer.order})
        if keeper.stopped:
            say(world, f"stopped after step {done} of {last}: room is wanted")
            break
        if (done - first) % every == 0 or done == last:
            (total,) = sum_over_ranks(world, loss.item())
            say(world, f"step {done}/{last} loss {total / seen:.4f}")
            loss, seen = torch.zeros((), device=world.device), 0
    pace.stop()
    return pace


@torch.no_grad()
def accuracy(trainer: Trainer) -> float:
    """The share of held-out targets named rightly; every rank looks at its own part of them."""
    world, held_out = trainer.world, trainer.task.held_out
    mine = part(torch.arange(len(held_out)), world.rank, world.size)
    least, most = EVALUATED
    together = min(most, max(least, trainer.batches.batch // (world.size * trainer.accumulate)))
    right = asked = 0
    # As many rounds on every rank: under FSDP each of them is a step that all take together.
    for indices in mine.tensor_split(-(-len(held_out) // (world.size * together))):
        inputs, targets = (tensor.to(world.device) for tensor in held_out.at(indices))
        right += trainer.network(inputs).argmax(dim=-1).eq(targets).sum().item()
        asked += targets.numel()
    rightly, all_asked = sum_over_ranks(world, right, asked)
    return rightly / all_asked


def run(options: argparse.Namespace, world: World, choice: Choice, task: Task) -> None:
    """Train, then print how fast it went and how often held-out samples are named rightly."""
    keeper = Keeper(options, world)
    start = keeper.resumed() if options.resume else None
    trainer = build(options, world, choice, task, start)
    first = start["step"] if start else 0
    last = max(first, options.steps or options.epochs * trainer.batches.per_epoch)
    folder = profiling.folder(options.profile_dir)
    with profiling.profiled(options.profile, folder, world, last - first) as profile:
        pace = train(options, trainer, keeper, range(first, last), profile)
    if keeper.stopped:
        return
    say(world, f"trained {last - first} steps on {world.size} ranks in {pace.whole:.1f} s")
    facts = {"world": world.size, "strategy": choice.asked, "ran_as": choice.runs_as, "model": options.model}
    facts["parameters"] = sum(parameter.numel() for parameter in trainer.network.parameters())
    say(world, pace.line(task.unit, task.per_sample, **facts, **trainer.order, amp=options.amp))
    say(world, f"weights {digest(trainer.model)}")
    with as_it_is():
        say(world, f"accuracy {accuracy(trainer):.4f}")


def as_rank(options: argparse.Namespace) -> None:
    """Join the other ranks, say on what this one computes, and run."""
    world = place(os.environ, options.device)
    choice = chosen(options.strategy, world, torch.cuda.device_count())
    world = world.in_group() if choice.needs_group else world
    if options.deterministic:
        repeat_exactly()
    with joined(world):
        print(world, flush=True)
        if choice.notice:
            say(world, f"notice: {choice.notice}")
        run(options, world, choice, TASKS[options.model](getattr(torch, options.dtype)))


@record
def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the rank that a launcher made of this process, or start the ranks first."""
    options = command_line.parse(arguments)
    if options.strategy == "ddp-spawn":
        ranks = spawning.how_many(options.ranks, os.environ, options.device)
        spawning.spawn(as_rank, ranks, options)
    else:
        as_rank(options)


if __name__ == "__main__":
    main()
