"""The options of train.py, and which of them go together; knows nothing that they switch on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import memory
import profiling

AUTO = 0
"""The batch size that stands for the largest that fits."""
DTYPES = ("float32", "float64")
STRATEGIES = ("single", "dp", "ddp", "ddp-spawn", "fsdp")
MODELS = ("cnn", "resnet", "gpt")
AMP = ("bf16", "fp16", "off")


BUCKET_MB = 25.0


class WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default only where it says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = isinstance(action.default, (int, float, str)) and str(action.default) not in ("False", "")
        return super()._get_help_string(action) if told else action.help


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def whole(text: str) -> int:
    """A whole number of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def batch_size(text: str) -> int:
    """A number of samples, or ``auto``."""
    return AUTO if text == "auto" else positive(text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; a wrong one ends the process with code 2."""
    reader = argparse.ArgumentParser(
        description="Train a network on any number of ranks, under any strategy.",
        formatter_class=WithDefaults,
    )
    for add in (add_training, add_strategy, add_practices, add_profile, add_checkpoints):
        add(reader)
    options = reader.parse_args(arguments)
    wrong = contradiction(options)
    if wrong:
        reader.error(wrong)
    return options


def contradiction(options: argparse.Namespace) -> str:
    """Why these options do not go together; empty when they do."""
    if options.resume and not options.checkpoint_dir:
        return "--resume needs --checkpoint-dir, where the checkpoints are"
    if options.augment and options.model == "gpt":
        return "--augment moves images, and gpt reads text: leave one of them out"
    if options.amp != "off" and options.dtype != "float32":
        return f"--amp {options.amp} computes in 16 bits, --dtype {options.dtype} in 64: leave one out"
    if options.ranks and options.strategy != "ddp-spawn":
        return "--ranks is for --strategy ddp-spawn, which starts its own; else the launcher says how many"
    if options.memory_limit and options.batch_size != AUTO:
        return "--memory-limit is what --batch-size auto keeps to: give both, or none"
    return ""


def add_training(reader: argparse.ArgumentParser) -> None:
    """What is trained, and for how long."""
    group = reader.add_argument_group("training")
    group.add_argument("--model", choices=MODELS, default="cnn", help="digits: cnn, resnet; a book: gpt")
    group.add_argument("--epochs", type=positive, default=20, help="times through the data")
    group.add_argument("--steps", type=positive, help="stop after so many, whatever --epochs says")
    group.add_argument(
        "--batch-size",
        type=batch_size,
        default=64,
        help="samples per step, over all ranks; or auto",
    )
    group.add_argument("--lr", type=float, help="learning rate; none: what suits the model")
    group.add_argument("--augment", action="store_true", help="move images by up to a pixel, at random")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="of every rank")
    group.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights")


def add_strategy(reader: argparse.ArgumentParser) -> None:
    """How it is spread."""
    group = reader.add_argument_group("strategy")
    group.add_argument(
        "--strategy", choices=STRATEGIES, default="", help="none: ddp on several ranks, single on one"
    )
    group.add_argument("--ranks", type=positive, help="that ddp-spawn starts; none: one per GPU or core")
    group.add_argument(
        "--bucket-mb", type=float, default=BUCKET_MB, help="MiB of gradients that DDP sends together"
    )
    group.add_argument(
        "--find-unused", action="store_true", help="DDP looks for parameters that a step did not use"
    )


def add_practices(reader: argparse.ArgumentParser) -> None:
    """How a step is computed."""
    group = reader.add_argument_group("practices")
    group.add_argument("--amp", choices=AMP, default="off", help="mixed precision")
    group.add_argument("--accumulate", type=positive, default=1, metavar="N", help="micro-batches per step")
    group.add_argument("--compile", action="store_true", help="torch.compile, where it works")
    group.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="only algorithms that repeat bit for bit",
    )
    group.add_argument("--workers", type=whole, default=0, help="processes per rank that load data")
    group.add_argument(
        "--memory-limit",
        type=memory.size,
        metavar="SIZE",
        help="of a CPU rank, for --batch-size auto",
    )


def add_profile(reader: argparse.ArgumentParser) -> None:
    """What is measured."""
    group = reader.add_argument_group("measuring")
    group.add_argument(
        "--profile",
        type=profiling.ranks_named,
        nargs="?",
        const=frozenset({0}),
        default=frozenset(),
        metavar="RANKS",
        help="trace these ranks: 0,4-7 or all (alone: rank 0)",
    )
    group.add_argument("--profile-dir", type=Path, help="for traces; none: the run directory, or ./traces")
    group.add_argument("--warm-up", type=whole, default=5, help="first steps that the throughput leaves out")


def add_checkpoints(reader: argparse.ArgumentParser) -> None:
    """What outlives the process."""
    group = reader.add_argument_group("checkpoints")
    group.add_argument("--checkpoint-dir", type=Path, help="none are written without it")
    group.add_argument(
        "--checkpoint-every", type=positive, default=100, metavar="STEPS", help="and at the end"
    )
    group.add_argument("--resume", action="store_true", help="go on from the newest, if there is one")
