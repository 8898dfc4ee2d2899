"""DDP under `clusterrun submit` beside torchrun, step by step in turns: a ratio with its confidence interval.

Launches follow each other by minutes, and in minutes a shared machine changes by more than launchers
differ. So all of them are started at once, and take turns of a fifth of a second: what is compared is
a turn with the turns next to it. torchrun itself is started twice: how far it is from itself is what a
difference must exceed.
"""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import psutil

from tests.benchmarks.measure import cpu_seconds

BIN = Path(sys.executable).parent
TURNS = Path(__file__).resolve().with_name("turns.py")
LIMIT = 600.0
STEPS = 25
SECONDS = 600.0
"""Turns are taken for so long; what the machine does beside decides how many."""
AGAINST = "torchrun"
SIDE_VARIABLE = "TURNS_SIDE"
"""Tells whose processes are whose, ranks or not."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CLUSTERRUN_PREFLIGHT": "off"}


def commands(path: str) -> dict[str, list[str]]:
    """What is launched, by name."""
    script = [str(TURNS), path]
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    ours = [str(BIN / "clusterrun"), "submit", "--cluster", "local", "--ranks-per-node", "2", "--follow"]
    starts = {AGAINST: torchrun, "torchrun again": torchrun, "clusterrun submit --follow": ours}
    return {name: [*start, *script, name, str(STEPS)] for name, start in starts.items()}


@contextmanager
def launched(side: str, command: list[str], home: str) -> Iterator[None]:
    """The command, running; at the end it gets its time to end by itself."""
    environment = {**os.environ, **ENVIRONMENT, "CLUSTERRUN_HOME": home, SIDE_VARIABLE: side}
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
    run = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
        run.wait(LIMIT)
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            run.wait(LIMIT)
        if run.returncode:
            log.seek(0)
            print(log.read(), file=sys.stderr)
        log.close()


def connected(listener: socket.socket, count: int) -> dict[str, TextIO]:
    """Whoever has said its name."""
    listener.settimeout(LIMIT)
    found = {}
    for _ in range(count):
        link, _ = listener.accept()
        link.settimeout(LIMIT)
        words = link.makefile("rw")
        found[words.readline().strip()] = words
    return found


def turn(words: TextIO) -> tuple[float, float]:
    """Let one of them take its steps: seconds on the wall, and of CPU time."""
    words.write("go\n")
    words.flush()
    wall, own = words.readline().split()
    return float(wall), float(own)


def beside(side: str) -> dict[int, float]:
    """CPU seconds so far of each process of a launch that is no rank, by its number."""
    found = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(SIDE_VARIABLE) == side and "RANK" not in environment:
                found[process.pid] = cpu_seconds(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios and the bounds of its 95 % confidence interval.

    The outer tenths are left out (trimmed mean; Yuen's error): turns in which something else ran.
    """
    logs = sorted(map(math.log, values))
    cut = len(logs) // 10
    inner = logs[cut : len(logs) - cut]
    mean = statistics.fmean(inner)
    bent = [*[inner[0]] * cut, *inner, *[inner[-1]] * cut]
    error = statistics.stdev(bent) / (0.8 * math.sqrt(len(logs)))
    return math.exp(mean), math.exp(mean - 1.96 * error), math.exp(mean + 1.96 * error)


class Figures:
    """What was found: each side's turns, and the share of a core that its launcher took beside its ranks."""

    def __init__(self, seconds: float) -> None:
        self.turns: dict[str, list[tuple[float, float]]] = {}
        self.aside: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as home, ExitStack() as running:
            path = os.path.join(home, "turns")
            listener = running.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            listener.listen()
            for name, command in commands(path).items():
                running.enter_context(launched(name, command, home))
            self._take(connected(listener, len(commands(path))), seconds)

    def _take(self, links: dict[str, TextIO], wanted: float) -> None:
        self.turns = {name: [] for name in links}
        before = {name: beside(name) for name in links}
        began = time.perf_counter()
        while time.perf_counter() - began < wanted:
            for name in random.sample(list(links), len(links)):
                self.turns[name].append(turn(links[name]))
        seconds = time.perf_counter() - began
        for name, words in links.items():
            spent = {pid: own - before[name].get(pid, 0.0) for pid, own in beside(name).items()}
            self.aside[name] = sum(spent.values()) / seconds
            words.close()

    def ratios(self, name: str, clock: int) -> list[float]:
        """How much faster each turn was than the turn of torchrun in the same round."""
        both = zip(self.turns[AGAINST], self.turns[name], strict=True)
        return [theirs[clock] / ours[clock] for theirs, ours in both]

    def show(self) -> None:
        """A row per side; more than 1 is faster than torchrun."""
        print(
            f"DDP, CNN, 2 ranks of 1 thread, gloo: {STEPS} steps in turns, beside torchrun in the same round"
        )
        for name in self.turns:
            if name == AGAINST:
                continue
            for clock, of in enumerate(("on the wall", "CPU time of its ranks")):
                mean, low, high = interval(self.ratios(name, clock))
                bounds = f"95 %: {low:.4f} to {high:.4f}, {len(self.turns[name])} turns"
                print(f"  {name}, {of}: {mean:.4f} × ({bounds})")
        for name, share in self.aside.items():
            print(f"  {name}: its other processes took {share:.2%} of a core")
        print("goal: at least 0.99 × torchrun", flush=True)


if __name__ == "__main__":
    Figures(float(sys.argv[1]) if sys.argv[1:] else SECONDS).show()
