"""Measure how fast a hang on 8 nodes × 2 ranks is named, and the CPU time of the watching processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from clusterrun import proc
from clusterrun.model.orders import WatchOrders
from tests.coordinator.runs import Run, runs, until

NODES, RANKS = 8, 2
HANG = 20.0
PATIENCE = 300.0
WARM = 12
"""Seconds that do not count: the observer comes when ranks have lived for ten."""
MINUTE = 60.0
OURS = ("coordinate", "agent", "observe")
"""Whose processor time is the price of being watched; the shim sleeps."""
HEAD = """
import os, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
"""
FOR_EVER = HEAD + "dist.all_reduce(torch.ones(4)); print('up', flush=True)\n"
FOR_EVER += "while True:\n    dist.all_reduce(torch.ones(4))\n    time.sleep(0.05)\n"
TIMED = (
    HEAD
    + """
work = torch.randn(256, 256)
def step():
    global work
    for _ in range(4):
        work = torch.tanh(work @ work)
    dist.all_reduce(work)
def steps(seconds):
    until, count = time.perf_counter() + seconds, 0
    go_on = torch.ones(1)
    while go_on.item():
        for _ in range(20):
            step()
        count += 20
        go_on.fill_(time.perf_counter() < until)
        dist.broadcast(go_on, 0)
    return count
print("up", flush=True)
steps(float(sys.argv[1]))
wall, processor = time.perf_counter(), time.process_time()
count = steps(float(sys.argv[2]))
print((time.perf_counter() - wall) / count, (time.process_time() - processor) / count, flush=True)
"""
)


def main() -> None:
    """Print every figure beside its goal."""
    with tempfile.TemporaryDirectory() as folder, runs(Path(folder)) as make:
        watch = WatchOrders(on=True, hang_seconds=HANG)
        run = make([sys.executable, "-c", FOR_EVER], nodes=NODES, ranks=RANKS, watch=watch)
        hang(run)
    with tempfile.TemporaryDirectory() as folder, runs(Path(folder)) as make:
        share(
            make([sys.executable, "-c", TIMED, str(WARM), str(2 * MINUTE)], 1, 2, watch=WatchOrders(on=True))
        )


def hang(run: Run) -> None:
    """Stop a rank, diagnose, and wait for the unasked report."""
    run.start()
    outputs = Path(run.paths.attempt(0).folder)
    until(lambda: len(is_up(outputs)) == NODES * RANKS, "all ranks", PATIENCE)
    os.kill(rank_process(run, 5).pid, signal.SIGSTOP)
    stopped = time.time()
    attempt = Path(run.paths.attempt(0).folder)
    Path(run.paths.asks).mkdir(mode=0o700, exist_ok=True)
    (Path(run.paths.asks) / "diagnose-bench").write_text("{}")
    until((attempt / "diagnose-bench.json").exists, "the answer", PATIENCE)
    said("a rank stopped → named, asked by hand", time.time() - stopped, named(attempt, "diagnose-bench"), 10)
    until((attempt / "diagnosis.json").exists, "the stall", PATIENCE)
    unasked = (attempt / "diagnosis.json").stat().st_mtime - stopped - HANG
    said(
        f"the same by itself, after the {HANG:g} s of --hang-after", unasked, named(attempt, "diagnosis"), 30
    )
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait(60)


def is_up(outputs: Path) -> list[Path]:
    """Return the outputs of ranks that have met."""
    return [path for path in outputs.glob("*.out") if b"up" in path.read_bytes()]


def rank_process(run: Run, rank: int) -> proc.Process:
    """Return the process of a rank."""
    return next(p for p in run.marked() if proc.environment(p.pid).get("RANK") == str(rank))


def named(attempt: Path, name: str) -> str:
    """Return the ranks that a diagnosis blames."""
    document = json.loads((attempt / f"{name}.json").read_text())
    return f"{document['verdict']}: {', '.join(str(culprit['rank']) for culprit in document['culprits'])}"


def said(what: str, seconds: float, culprits: str, goal: float) -> None:
    print(f"{what:58} {f'{seconds:.1f} s  ({culprits})':38} goal ≤ {goal:g} s", flush=True)


def share(run: Run) -> None:
    """Measure the CPU time of the watching processes as a share of the ranks' CPU time, for a minute."""
    run.start()
    outputs = Path(run.paths.attempt(0).folder)
    until(lambda: len(is_up(outputs)) == 2, "both ranks", PATIENCE)
    time.sleep(WARM)
    ranks = [rank_process(run, rank).pid for rank in range(2)]
    ours = {pid: name for pid in family(run) if (name := part(pid))}
    before = {pid: cpu_seconds(pid) for pid in (*ranks, *ours)}
    time.sleep(MINUTE)
    used = {pid: cpu_seconds(pid) - seconds for pid, seconds in before.items()}
    theirs = sum(used[pid] for pid in ranks)
    for name in OURS:
        taken = sum(used[pid] for pid in ours if ours[pid] == name)
        print(f"{'processor time of ' + name + ' in a minute':58} {taken:.2f} s", flush=True)
    all_of_us = sum(used[pid] for pid in ours) / theirs
    figure = f"{all_of_us:.2%} of the ranks' {theirs:.0f} s"
    print(f"{'the three, beside the ranks that they watch':58} {figure:38} goal < 1 %", flush=True)
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait(PATIENCE)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def family(run: Run) -> list[int]:
    """Return the coordinator's process id and those of its descendants."""
    return [run.coordinator.pid, *(process.pid for process in proc.descendants(run.coordinator.pid))]


def part(pid: int) -> str:
    """Return the part of clusterrun that a process is, by its command line; '' for others.

    An agent is its shim's child.
    """
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return next((name for name in OURS if name in arguments[:8]), "")


if __name__ == "__main__":
    main()
