"""Train one model on one data set with one loop, under any strategy and any launcher.

    clusterrun submit --nodes 4 --gpus 8 jobs/train.py --epochs 20     on Slurm, NCCL
    clusterrun submit --nodes 2 --ranks-per-node 2 jobs/train.py       CPU ranks, gloo
    torchrun --nproc-per-node 4 jobs/train.py                          under torch's own launcher
    python jobs/train.py                                               alone

The same seed and global batch give the same training for every number of ranks and every strategy,
apart from rounding. The gradient of a step is the mean over the global batch.
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

# Progress is printed about this many times in a run.
REPORTS = 10
# Least and most samples that are evaluated together. In between, as many as a step has.
EVALUATED = (16, 256)


def step(trainer: Trainer, dealt: Dealt) -> torch.Tensor:
    """Train on this rank's part of a global batch. Return the sum of its losses."""
    world, model = trainer.world, trainer.model
    seed_rank(trainer.seed, world.rank, dealt.step)
    whole = torch.zeros((), device=world.device)
    trainer.optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(dealt.split(trainer.accumulate, world.device), 1):
        with gradients_kept(model, is_kept=number < trainer.accumulate):
            with trainer.precision.cast():
                scores = model(inputs)
            loss = summed_loss(scores, targets)
            # DDP takes the mean over ranks. Parts may differ in size, so take the mean over samples.
            trainer.scaler.scale(loss * world.size / dealt.total).backward()
        whole += loss.detach()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    return whole


def train(
    options: argparse.Namespace, trainer: Trainer, keeper: Keeper, steps: range, profile: profiling.Profile
) -> Pace:
    """Run the steps, save checkpoints and print the progress. End early if clusterrun requests it."""
    first, last = steps.start, steps.stop
    world, every = trainer.world, max(1, (last - first) // REPORTS)
    dealer = Dealer(trainer.task.training, options.seed, world.rank, world.size, options.augment)
    pace = Pace(world.device, min(options.warm_up, (last - first) // 2))
    loss, samples = torch.zeros((), device=world.device), 0
    batches = trainer.batches.steps(first, last)
    for dealt in loaded(dealer, batches, options.workers, pinned=world.device.type == "cuda"):
        loss += step(trainer, dealt)
        samples += dealt.total
        pace.stepped(dealt.total)
        profile.stepped()
        steps_done = dealt.step + 1
        keeper.stepped(steps_done, last, lambda: {**trainer.state(), "order": trainer.order})
        if keeper.stopped:
            say(world, f"stopped after step {steps_done} of {last}: the job must end")
            break
        if (steps_done - first) % every == 0 or steps_done == last:
            (total,) = sum_over_ranks(world, loss.item())
            say(world, f"step {steps_done}/{last} loss {total / samples:.4f}")
            loss, samples = torch.zeros((), device=world.device), 0
    pace.stop()
    return pace


@torch.no_grad()
def accuracy(trainer: Trainer) -> float:
    """Return the share of held-out targets that are predicted correctly. Each rank evaluates its part."""
    world, held_out = trainer.world, trainer.task.held_out
    mine = part(torch.arange(len(held_out)), world.rank, world.size)
    least, most = EVALUATED
    together = min(most, max(least, trainer.batches.batch // (world.size * trainer.accumulate)))
    right = predicted = 0
    # Every rank has the same number of rounds, because a forward pass under FSDP needs all ranks.
    for indices in mine.tensor_split(-(-len(held_out) // (world.size * together))):
        inputs, targets = (tensor.to(world.device) for tensor in held_out.at(indices))
        right += trainer.network(inputs).argmax(dim=-1).eq(targets).sum().item()
        predicted += targets.numel()
    total_right, total = sum_over_ranks(world, right, predicted)
    return total_right / total


def run(options: argparse.Namespace, world: World, choice: Choice, task: Task) -> None:
    """Train, then print the speed and the accuracy."""
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
    """Join the other ranks, print the device of this rank, and run."""
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
    """Train as a rank. Start the ranks first if the strategy is ``ddp-spawn``."""
    options = command_line.parse(arguments)
    if options.strategy == "ddp-spawn":
        ranks = spawning.how_many(options.ranks, os.environ, options.device)
        spawning.spawn(as_rank, ranks, options)
    else:
        as_rank(options)


if __name__ == "__main__":
    main()
