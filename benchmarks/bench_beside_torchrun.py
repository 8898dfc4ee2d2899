"""DDP under `clusterrun submit` beside torchrun, step by step in turns: a ratio with its confidence interval.

Runs that follow each other are minutes apart, and in minutes a shared machine changes by more than
launchers differ. So all sides are started at once and take turns of a fifth of a second: a turn is
compared with those next to it. Two processes of the very same program differ too, by where their
memory happens to lie, for as long as they live: so everything is started anew several times, and the
interval is over these starts. torchrun takes part twice: how far it is from itself is the measure.
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

from benchmarks.measure import cpu_seconds

BIN = Path(sys.executable).parent
TURNS = Path(__file__).resolve().with_name("turns.py")
LIMIT = 600.0
STEPS = 25
STARTS = 8
SECONDS = 40.0
"""Turns are taken for so long in each start; what the machine does beside decides how many."""
STUDENT = {
    2: 12.71,
    3: 4.30,
    4: 3.18,
    5: 2.78,
    6: 2.57,
    7: 2.45,
    8: 2.36,
    9: 2.31,
    10: 2.26,
    11: 2.23,
    12: 2.20,
}
"""Number of values → how many standard errors make a 95 % interval."""
AGAINST = "torchrun"
SIDE_VARIABLE = "TURNS_SIDE"
"""Tells whose processes are whose, ranks or not."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CLUSTERRUN_PREFLIGHT": "off"}


def commands(path: str) -> dict[str, list[str]]:
    """Return the launch commands by name."""
    script = [str(TURNS), path]
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    ours = [str(BIN / "clusterrun"), "submit", "--cluster", "local", "--ranks-per-node", "2", "--follow"]
    starts = {AGAINST: torchrun, "torchrun again": torchrun, "clusterrun submit --follow": ours}
    return {name: [*start, *script, name, str(STEPS)] for name, start in starts.items()}


@contextmanager
def launched(side: str, command: list[str], home: str) -> Iterator[None]:
    """Run the command. At the end it gets time to end by itself."""
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
    """Accept ``count`` connections and return each with the name that it sends."""
    listener.settimeout(LIMIT)
    streams = {}
    for _ in range(count):
        link, _ = listener.accept()
        link.settimeout(LIMIT)
        stream = link.makefile("rw")
        streams[stream.readline().strip()] = stream
    return streams


def turn(stream: TextIO) -> tuple[float, float]:
    """Let one of them take its steps: seconds on the wall, and of CPU time."""
    stream.write("go\n")
    stream.flush()
    wall, own = stream.readline().split()
    return float(wall), float(own)


def beside(side: str) -> dict[int, float]:
    """Return the CPU seconds of each process of a launch that is no rank, by its process id."""
    seconds_by_pid = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(SIDE_VARIABLE) == side and "RANK" not in environment:
                seconds_by_pid[process.pid] = cpu_seconds(process.pid)
        except (psutil.Error, OSError):
            continue
    return seconds_by_pid


def middle(ratios: list[float]) -> float:
    """Return the logarithm of a typical ratio: the mean without the outer tenths, which load disturbed."""
    logs = sorted(map(math.log, ratios))
    cut = len(logs) // 10
    return statistics.fmean(logs[cut : len(logs) - cut])


def interval(logs: list[float]) -> tuple[float, float, float]:
    """Return the ratio over all starts, and the bounds of its 95 % confidence interval (Student's)."""
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    width = STUDENT[len(logs)] * error
    return math.exp(mean), math.exp(mean - width), math.exp(mean + width)


class Start:
    """The result of a start: each side's turns, and the share of a core that its launcher used."""

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
        for name, stream in links.items():
            spent = {pid: own - before[name].get(pid, 0.0) for pid, own in beside(name).items()}
            self.aside[name] = sum(spent.values()) / seconds
            stream.close()

    def ratio(self, name: str, clock: int) -> float:
        """Return the logarithm of the ratio of torchrun's time to this side's in the same rounds."""
        both = zip(self.turns[AGAINST], self.turns[name], strict=True)
        return middle([theirs[clock] / ours[clock] for theirs, ours in both])


def show(starts: list[Start]) -> None:
    """Print the ratios. More than 1 is faster than torchrun."""
    turns = sum(len(start.turns[AGAINST]) for start in starts)
    print(f"DDP, CNN, 2 ranks of 1 thread, gloo: {turns} turns of {STEPS} steps in {len(starts)} starts")
    for name in starts[0].turns:
        for clock, of in enumerate(("on the wall", "CPU time of its ranks") if name != AGAINST else ()):
            mean, low, high = interval([start.ratio(name, clock) for start in starts])
            print(f"  {name}, {of}: {mean:.4f} × torchrun (95 %: {low:.4f} to {high:.4f})")
        share = statistics.fmean(start.aside[name] for start in starts)
        print(f"  {name}: its processes that are no ranks took {share:.2%} of a core")
    print("goal: at least 0.99 × torchrun", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if sys.argv[1:] else STARTS
    seconds = float(sys.argv[2]) if sys.argv[2:] else SECONDS
    show([Start(seconds) for _ in range(count)])
