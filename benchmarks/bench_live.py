"""Measure `status` with 500 live runs of 5,000, beside one bare `squeue`, and count its queries of Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.bench_status import SPEC, fill
from benchmarks.measure import Side, in_turn, process, table
from benchmarks.on_login import CLUSTERRUN, on_login
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, RunRecord, RunState
from clusterrun.model.states import Phase, State
from clusterrun.runs.store import Store, _text, run_id

ENDED, LIVE = 4500, 500
ROUNDS = 15
AT_ONCE = 20
QUEUE = "for i in $(seq {0}); do sbatch --parsable --hold --job-name=name$i --comment=c$i --wrap=true; done"


def main() -> None:
    """Measure on the login host of a lab of 4 nodes."""
    on_login("live", measure)


def measure() -> None:
    """Fill a home and a queue, then ask."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(home)
        fill(store, ENDED)
        live(store, queued())
        environment = {**os.environ, "CLUSTERRUN_HOME": home, "CLUSTERRUN_PREFLIGHT": "off"}
        status = process([CLUSTERRUN, "status"], env=environment)
        sides = {
            f"clusterrun status, {LIVE} of {ENDED + LIVE} runs live": afresh(home, status),
            "the same, Slurm's answer at hand": status,
            "clusterrun status --all": afresh(
                home, process([CLUSTERRUN, "status", "--all"], env=environment)
            ),
            "squeue": process(["squeue"]),
        }
        print(table("status, whole process", in_turn(sides, ROUNDS), "≤ squeue + 150 ms"))
        for name, count in (("one status", 1), (f"{AT_ONCE} status at once", AT_ONCE)):
            afresh(home, lambda: 0.0)()
            before = asked()
            together([CLUSTERRUN, "status"], environment, count)
            print(f"requests to the controller, {name}: {asked() - before}   goal: 1", flush=True)


def queued() -> list[str]:
    """Queue as many real jobs, all of them held, and return their ids."""
    result = subprocess.run(
        ["sh", "-c", QUEUE.format(LIVE)], capture_output=True, text=True, timeout=600, check=True
    )
    return result.stdout.split()


def live(store: Store, jobs: list[str]) -> None:
    """Write a run for each job. Every second run has a coordinator with a fresh state."""
    now = time.time() - len(jobs)
    for number, job in enumerate(jobs):
        at = now + number
        chosen = run_id(f"live{number:03d}", at, os.urandom(2))
        store.claim(chosen)
        store.save(RunRecord(chosen, f"live{number:03d}", "slurm", f"token{job}", replace(SPEC), at, job))
        if number % 2:
            attempt = Attempt(0, "first start", ("n0001", "n0002", "n0003", "n0004"), at)
            state = RunState(
                chosen, 0, State.RUNNING, Phase.TRAINING, "", "n0001", 7, time.time() + 3600, (attempt,), at
            )
            Path(store.paths(chosen).state).write_text(_text(state))


def afresh(home: str, side: Side) -> Side:
    """Return the side without the cached answers of Slurm."""

    def once() -> float:
        for path in Path(home, "cache").glob("squeue-*.json"):
            path.unlink()
        return side()

    return once


def asked() -> int:
    """Return the number of queries about jobs that the controller has answered."""
    output = subprocess.run(["sdiag"], capture_output=True, text=True, timeout=30, check=True).stdout
    return sum(map(int, re.findall(r"REQUEST_JOB_(?:INFO|USER_INFO|INFO_SINGLE)\s.*?count:(\d+)", output)))


def together(command: list[str], environment: dict[str, str], count: int) -> None:
    """Run the same command in many processes at once."""
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    for client in running:
        if client.wait(120):
            raise RuntimeError(f"{command} ended with {client.returncode}")


if __name__ == "__main__":
    main()
