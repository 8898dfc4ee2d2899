"""Measure the speed of a training with the guide's practices and strategies, and a launcher's overhead."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import Measured, Side, in_turn, table

ROOT = Path(__file__).resolve().parents[1]
TRAIN = ROOT / "jobs" / "train.py"
BIN = Path(sys.executable).parent
ROUNDS = 3
LAUNCHES = 9
"""Two launchers differ by a few in a hundred, if at all: more rounds than for what differs by more."""
LIMIT = 300.0
RESNET = "--model resnet --steps 10 --batch-size 16"
GPT = "--model gpt --steps 10 --batch-size 8"

PRACTICES = {
    "batch size, CNN": {
        "--batch-size 1437": "--steps 8 --batch-size 1437",
        "--batch-size 512": "--steps 12 --batch-size 512",
        "--batch-size 8": "--steps 150 --batch-size 8",
        "--batch-size 64": "--steps 50 --batch-size 64",
    },
    "mixed precision and compile, GPT, batches of 8": {
        "--amp bf16": f"{GPT} --amp bf16",
        "--amp fp16": f"{GPT} --amp fp16",
        "--compile": f"{GPT} --compile",
        "plain": GPT,
    },
    "micro-batches of a batch of 16, ResNet": {
        "--accumulate 2": f"{RESNET} --accumulate 2",
        "--accumulate 4": f"{RESNET} --accumulate 4",
        "--accumulate 16": f"{RESNET} --accumulate 16",
        "--accumulate 1": RESNET,
    },
    "mixed precision and compile, ResNet, batches of 16": {
        "--amp bf16": f"{RESNET} --amp bf16",
        "--compile": f"{RESNET} --compile",
        "plain": RESNET,
    },
}
"""Title → name → options; the last one is what the others are measured against."""
RANKS = "--model gpt --steps 16 --batch-size 8"
STRATEGIES = {
    "--strategy ddp --bucket-mb 0.5": f"{RANKS} --bucket-mb 0.5",
    "--strategy ddp --accumulate 4": f"{RANKS} --accumulate 4",
    "--strategy fsdp": f"{RANKS} --strategy fsdp",
    "--strategy ddp --find-unused": f"{RANKS} --find-unused",
    "--strategy ddp": RANKS,
}
LAUNCHED = "--steps 500 --batch-size 64"


def said(printed: str, name: str) -> float:
    """Return a figure of the throughput line."""
    match = re.search(rf"\b{name}=([\d.]+)", printed)
    if not match:
        raise RuntimeError(f"no {name} in a throughput line in:\n{printed}")
    return float(match[1])


def samples_per_second(printed: str) -> float:
    """Return the speed by wall-clock time."""
    return said(printed, "samples_per_second")


def wall_per_cpu_second(printed: str) -> float:
    """Return rank 0's wall seconds per CPU second: more than 1 if it waited or shared its core."""
    return said(printed, "seconds") / said(printed, "cpu_seconds")


def here(options: str) -> Side:
    """Return a side that trains in this process, so that torch is imported once, by one thread.

    The time is CPU time, which other load on the machine does not change.
    """
    import train

    def once() -> float:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            train.main(["--device", "cpu", *options.split()])
        return samples_per_second(printed.getvalue()) * wall_per_cpu_second(printed.getvalue())

    return once


def launched(command: list[str], texts: list[str], **environment: str) -> Side:
    """Return a side that trains by the command. Its output, with rank 0's lines, is added to ``texts``."""

    def once() -> float:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        if run.returncode:
            raise RuntimeError(f"{command} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        texts.append(run.stdout)
        return samples_per_second(run.stdout)

    return once


def torchrun(options: str, texts: list[str]) -> Side:
    """Return a side with two CPU ranks under torch's own launcher."""
    start = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(TRAIN)]
    return launched([*start, "--device", "cpu", *options.split()], texts)


def submitted(options: str, texts: list[str], home: str, follow: bool) -> Side:
    """Return a side with two CPU ranks under `clusterrun submit` on this machine, followed or not."""
    where = ["--cluster", "local", "--ranks-per-node", "2", "--follow" if follow else "--wait"]
    start = [str(BIN / "clusterrun"), "submit", *where, str(TRAIN), "--device", "cpu", *options.split()]
    if not follow:
        start = ["sh", "-c", '"$@" >&2 && exec "$1" logs --raw --stream out', "sh", *start]
    return launched(start, texts, CLUSTERRUN_HOME=home)


def show(title: str, measured: tuple[Measured, ...], goal: str = "") -> None:
    """Print a figure of which more is better."""
    print(table(title, measured, goal, scale=1.0, unit="samples/s"), flush=True)
    print(flush=True)


def main(parts: list[str]) -> None:
    """Run all parts or the named ones: practices, strategies, launch."""
    selected = parts or ["practices", "strategies", "launch"]
    if "practices" in selected:
        import torch

        sys.path.insert(0, str(TRAIN.parent))
        torch.set_num_threads(1)
        for title, sides in PRACTICES.items():
            measured = in_turn({name: here(options) for name, options in sides.items()}, ROUNDS, warm=0)
            show(f"{title}, 1 process of 1 thread", measured)
    if "strategies" in selected:
        compare(
            "GPT, 2 ranks of 1 thread, gloo",
            {name: partial(torchrun, options) for name, options in STRATEGIES.items()},
            ROUNDS,
        )
    if "launch" in selected:
        with tempfile.TemporaryDirectory() as home:
            sides = {
                "clusterrun submit --wait": partial(submitted, LAUNCHED, home=home, follow=False),
                "clusterrun submit --follow": partial(submitted, LAUNCHED, home=home, follow=True),
                "torchrun": partial(torchrun, LAUNCHED),
            }
            title = "the same script, CNN, 2 ranks of 1 thread, gloo"
            compare(title, sides, LAUNCHES, "at least 0.99 × torchrun")


def compare(title: str, sides: dict[str, partial[Side]], rounds: int, goal: str = "") -> None:
    """Print both clocks.

    On a shared machine the CPU time shows the time that the wall clock would show alone.
    """
    texts: dict[str, list[str]] = {name: [] for name in sides}
    walls = in_turn({name: side(texts=texts[name]) for name, side in sides.items()}, rounds, warm=0)
    show(f"{title}: by the clock on the wall", walls, goal)
    own = [
        Measured(name, tuple(samples_per_second(text) * wall_per_cpu_second(text) for text in each))
        for name, each in texts.items()
    ]
    show(f"{title}: per second of rank 0's own CPU time", tuple(own), goal)


if __name__ == "__main__":
    main(sys.argv[1:])
