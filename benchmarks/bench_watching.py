"""Measure the cost of watching for a training step, in turns within the same processes.

Two processes of one program differ by more than this cost, because their memory lies elsewhere. So one
run is watched and not watched in turns. In turns without watching, the node's observer is stopped, and
every rank closes its entries: the sleeping thread ends, and the signal handler is restored. torch's flight
recorder cannot be switched in a running rank and is measured by itself; torch has it on without us too.
The prelude's few milliseconds at the start belong to no step.

The observer looks every ten seconds, too rarely for a measurement. So it also looks ten times as often;
the cost is a tenth of that.
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
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from benchmarks.bench_diagnose import family, part
from clusterrun.model.orders import WatchOrders
from tests.coordinator.runs import Run, runs, until

WATCHED = Path(__file__).resolve().with_name("watched.py")
PATIENCE = 300.0
USUAL, OFTEN = 10.0, 1.0
"""Seconds between two looks."""
PAIRS = {USUAL: 9, OFTEN: 36}
TURN = {USUAL: 10.0, OFTEN: 2.0}
"""Seconds of a turn: a look or two in each that is watched."""
STARTS = 3
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23}
MANY = 2.2
"""Student's t for 95 %, by degrees of freedom. MANY, for more than ten, is slightly too large."""
RECORDED = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
data, times = torch.ones(4), []
for turn in range(40):
    began = time.process_time()
    for _ in range(500):
        dist.all_reduce(data)
    times.append((time.process_time() - began) / 500)
print(sorted(times)[10])
"""


def main() -> None:
    """Print every figure beside its goal."""
    show("watched, with a look every second", compared(OFTEN))
    show("watched, with a look every ten seconds, as usual", compared(USUAL))
    recorder()


def compared(every: float) -> list[list[float]]:
    """Return the differences between watched and unwatched steps of neighbouring turns: wall and CPU time."""
    with tempfile.TemporaryDirectory() as folder, runs(Path(folder)) as make:
        path = os.path.join(folder, "turns")
        watch = WatchOrders(on=True, sample_seconds=every, hang_seconds=0.0)
        run = make([sys.executable, str(WATCHED), path], nodes=1, ranks=2, watch=watch)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(PATIENCE)
            run.start()
            link, _ = listener.accept()
            with link, link.makefile("rw") as stream:
                stream.readline()
                differences = taken(run, stream, every)
        run.wait(PATIENCE)
        return differences


def taken(run: Run, stream: TextIO, every: float) -> list[list[float]]:
    """Return pairs of turns, the watched one first or last by chance. The first pair only warms up."""
    pairs = []
    observer = until(lambda: observing(run), "the observer", PATIENCE)
    for _ in range(PAIRS[every] + 1):
        order = random.sample((True, False), 2)
        both = {on: turn(observer, stream, on, TURN[every]) for on in order}
        pairs.append(
            [math.log(watched / plain) for watched, plain in zip(both[True], both[False], strict=True)]
        )
    return [list(column) for column in zip(*pairs[1:], strict=True)]


def turn(observer: int, stream: TextIO, on: bool, seconds: float) -> tuple[float, float]:
    """Return a turn's seconds per step: wall time, and CPU time of all ranks."""
    os.kill(observer, signal.SIGCONT if on else signal.SIGSTOP)
    stream.write(f"{int(on)} {seconds}\n")
    stream.flush()
    wall, own = stream.readline().split()
    os.kill(observer, signal.SIGCONT)
    return float(wall), float(own)


def observing(run: Run) -> int:
    """Wait for the observer and return its process id."""
    return next((pid for pid in family(run) if part(pid) == "observe"), 0)


def show(what: str, logs: Sequence[Sequence[float]]) -> None:
    for name, ratios in zip(("by the clock", "CPU time of the ranks"), logs, strict=True):
        more, either_way = interval(ratios)
        figure = f"{more:+.2%} ± {either_way:.2%} (95 %, {len(ratios)} pairs)"
        print(f"{f'{what}: {name}':72} {figure:36} goal < 1 %", flush=True)


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """Return the mean without the outer tenths, which other load disturbed, and half of its 95 % interval."""
    cut = len(logs) // 10
    middle = sorted(logs)[cut : len(logs) - cut]
    spread = statistics.stdev(middle) / math.sqrt(len(middle)) / (1 - 2 * cut / len(logs))
    return statistics.fmean(middle), STUDENT.get(len(middle) - 1, MANY) * spread


def recorder() -> None:
    """Measure the share of a collective that torch's flight recorder takes, in new processes in turns."""
    microseconds: dict[str, list[float]] = {"0": [], "2000": []}
    for size in ("0", "2000") * STARTS:
        environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": size}
        command = [sys.executable, "-c", RECORDED]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        microseconds[size].append(float(result.stdout) * 1e6)
    without, with_it = (statistics.median(microseconds[size]) for size in ("0", "2000"))
    figure = f"{with_it - without:+.1f} µs of {without:.1f} µs"
    print(f"{'torch’s recorder, on with and without us: CPU time of a collective':72} {figure}", flush=True)


if __name__ == "__main__":
    main()
