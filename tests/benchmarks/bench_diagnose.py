"""How fast a hang is named on 8 nodes × 2 ranks, by hand and by itself; what being watched costs a step."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from clusterrun.agent import proc
from clusterrun.model.orders import Watch
from tests.agent.runs import Run, runs, until
from tests.benchmarks.measure import Measured, in_turn, table

NODES, RANKS = 8, 2
HANG = 20.0
PATIENCE = 300.0
STEPS, ROUNDS = 150, 3
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
    + f"""
work, times = torch.randn(256, 256), []
for step in range({STEPS}):
    began = time.perf_counter()
    for _ in range(4):
        work = torch.tanh(work @ work)
    dist.all_reduce(work)
    times.append(time.perf_counter() - began)
print("up", sorted(times)[len(times) // 2], flush=True)
"""
)


def main() -> None:
    """Print every figure beside its goal."""
    with tempfile.TemporaryDirectory() as folder, runs(Path(folder)) as make:
        watch = Watch(on=True, hang_seconds=HANG)
        run = make([sys.executable, "-c", FOR_EVER], nodes=NODES, ranks=RANKS, watch=watch)
        hang(run)
    with tempfile.TemporaryDirectory() as folder:
        print(table("a step of 2 ranks", cost(Path(folder)), "watched < 1 % more"), flush=True)


def hang(run: Run) -> None:
    """Stop a rank, ask, and wait until it is told unasked."""
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
    told = (attempt / "diagnosis.json").stat().st_mtime - stopped - HANG
    said(f"the same by itself, after the {HANG:g} s of --hang-after", told, named(attempt, "diagnosis"), 30)
    run.coordinator.send_signal(signal.SIGTERM)
    run.wait(60)


def is_up(outputs: Path) -> list[Path]:
    """The outputs of ranks that have met."""
    return [path for path in outputs.glob("*.out") if b"up" in path.read_bytes()]


def rank_process(run: Run, rank: int) -> proc.Process:
    """The process of a rank."""
    return next(p for p in run.marked() if proc.environment(p.pid).get("RANK") == str(rank))


def named(attempt: Path, name: str) -> str:
    """Whom a diagnosis blames."""
    found = json.loads((attempt / f"{name}.json").read_text())
    return f"{found['verdict']}: {', '.join(str(one['rank']) for one in found['culprits'])}"


def said(what: str, seconds: float, whom: str, goal: float) -> None:
    print(f"{what:58} {f'{seconds:.1f} s  ({whom})':38} goal ≤ {goal:g} s", flush=True)


def cost(folder: Path) -> tuple[Measured, ...]:
    """The median step of a run that is watched, in turn with one that is not."""
    with runs(folder) as make:

        def side(on: bool) -> float:
            watch = Watch(on=on, hang_seconds=HANG)
            run = make([sys.executable, "-c", TIMED], nodes=1, ranks=2, watch=watch)
            run.start()
            run.wait(PATIENCE)
            return statistics.mean(float(run.output(rank).split()[1]) for rank in range(2))

        return in_turn({"watched": lambda: side(True), "not watched": lambda: side(False)}, ROUNDS)


if __name__ == "__main__":
    main()
