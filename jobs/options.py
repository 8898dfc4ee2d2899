"""Parse the options of train.py and refuse contradictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import memory
import profiling

AUTO = 0  # a batch size: the largest that fits
DTYPES = ("float32", "float64")
STRATEGIES = ("single", "dp", "ddp", "ddp-spawn", "fsdp")
MODELS = ("cnn", "resnet", "gpt")
AMP = ("bf16", "fp16", "off")
BUCKET_MB = 25.0


class WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Show a default only if it is a number or a word."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_shown = isinstance(action.default, (int, float, str)) and str(action.default) not in ("False", "")
        return super()._get_help_string(action) if is_shown else action.help


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def whole(text: str) -> int:
    """Return a whole number of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def batch_size(text: str) -> int:
    """Return a number of samples, or ``AUTO``."""
    return AUTO if text == "auto" else positive(text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. A wrong option ends the process with code 2."""
    reader = argparse.ArgumentParser(
        description="Train a network on any number of ranks, under any strategy.",
        formatter_class=WithDefaults,
    )
    for add in (add_training, add_strategy, add_practices, add_profile, add_checkpoints):
        add(reader)
    options = reader.parse_args(arguments)
    problem = contradiction(options)
    if problem:
        reader.error(problem)
    return options


def contradiction(options: argparse.Namespace) -> str:
    """Return why these options contradict each other, '' if they do not."""
    if options.resume and not options.checkpoint_dir:
        return "--resume needs --checkpoint-dir, where the checkpoints are"
    if options.augment and options.model == "gpt":
        return "--augment moves images, and gpt reads text: leave one of them out"
    if options.amp != "off" and options.dtype != "float32":
        return f"--amp {options.amp} computes in 16 bits, --dtype {options.dtype} in 64: leave one out"
    if options.ranks and options.strategy != "ddp-spawn":
        return "--ranks needs --strategy ddp-spawn: with other strategies the launcher starts the ranks"
    if options.memory_limit and options.batch_size != AUTO:
        return "--memory-limit needs --batch-size auto"
    return ""


def add_training(reader: argparse.ArgumentParser) -> None:
    """Add the options for model, data and duration."""
    group = reader.add_argument_group("training")
    group.add_argument(
        "--model", choices=MODELS, default="cnn", help="cnn and resnet for digits, gpt for a book"
    )
    group.add_argument("--epochs", type=positive, default=20, help="passes through the data")
    group.add_argument("--steps", type=positive, help="number of steps, instead of --epochs")
    group.add_argument(
        "--batch-size",
        type=batch_size,
        default=64,
        help="samples per step over all ranks, or auto: the most that fit",
    )
    group.add_argument("--lr", type=float, help="learning rate (default: one for each model)")
    group.add_argument("--augment", action="store_true", help="shift images at random by up to one pixel")
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device of every rank"
    )
    group.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the weights")


def add_strategy(reader: argparse.ArgumentParser) -> None:
    """Add the options for the strategy."""
    group = reader.add_argument_group("strategy")
    group.add_argument(
        "--strategy", choices=STRATEGIES, default="", help="default: ddp for several ranks, single for one"
    )
    group.add_argument(
        "--ranks", type=positive, help="ranks that ddp-spawn starts (default: one per GPU or core)"
    )
    group.add_argument(
        "--bucket-mb", type=float, default=BUCKET_MB, help="MiB of gradients that DDP sends together"
    )
    group.add_argument(
        "--find-unused", action="store_true", help="DDP looks for parameters that a step did not use"
    )


def add_practices(reader: argparse.ArgumentParser) -> None:
    """Add the options for the computation of a step."""
    group = reader.add_argument_group("practices")
    group.add_argument("--amp", choices=AMP, default="off", help="mixed precision")
    group.add_argument("--accumulate", type=positive, default=1, metavar="N", help="micro-batches per step")
    group.add_argument("--compile", action="store_true", help="use torch.compile if it works")
    group.add_argument("--seed", type=int, default=0, help="seed of weights, order and augmentation")
    group.add_argument(
        "--deterministic", action="store_true", help="use only algorithms with reproducible results"
    )
    group.add_argument("--workers", type=whole, default=0, help="processes per rank that load data")
    group.add_argument(
        "--memory-limit", type=memory.size, metavar="SIZE", help="memory of a CPU rank, for --batch-size auto"
    )


def add_profile(reader: argparse.ArgumentParser) -> None:
    """Add the options for measurements."""
    group = reader.add_argument_group("measuring")
    group.add_argument(
        "--profile",
        type=profiling.ranks_named,
        nargs="?",
        const=frozenset({0}),
        default=frozenset(),
        metavar="RANKS",
        help="trace these ranks: 0,4-7 or all (without a value: rank 0)",
    )
    group.add_argument(
        "--profile-dir", type=Path, help="folder of traces (default: in the run directory, or ./traces)"
    )
    group.add_argument("--warm-up", type=whole, default=5, help="first steps, not counted in the throughput")


def add_checkpoints(reader: argparse.ArgumentParser) -> None:
    """Add the options for checkpoints."""
    group = reader.add_argument_group("checkpoints")
    group.add_argument(
        "--checkpoint-dir", type=Path, help="folder of checkpoints (default: none are written)"
    )
    group.add_argument(
        "--checkpoint-every",
        type=positive,
        default=100,
        metavar="STEPS",
        help="interval; the last step is always saved",
    )
    group.add_argument(
        "--resume", action="store_true", help="continue from the newest checkpoint if there is one"
    )
