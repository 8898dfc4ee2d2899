"""Measure the client's commands on a real Slurm, beside Slurm's own commands and a bare submitit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from benchmarks.measure import Side, in_turn, process, table
from benchmarks.on_login import CLUSTERRUN, on_login

ROUNDS = 15
RUNS = 10
SUBMITIT = """
import sys
import submitit
executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(nodes=4, ntasks_per_node=1, time=5)
executor.submit(print, "hello")
"""


def main() -> None:
    """Measure on the login host of a lab of 4 nodes."""
    on_login("context", measure)


def measure() -> None:
    """Submit and ask, in turn with what each is measured against."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "CLUSTERRUN_HOME": home}
        submit = [CLUSTERRUN, "submit", "--nodes", "4", "true"]
        sides = {
            "clusterrun submit --nodes 4": queued(process(submit, env=environment)),
            "a script that submits with submitit": queued(
                process([sys.executable, "-c", SUBMITIT, f"{home}/submitit"], env=environment)
            ),
        }
        print(table("submit of a 4-node job, whole process", in_turn(sides, ROUNDS), "≤ 1.0 ×"))
        for _ in range(RUNS):
            process([CLUSTERRUN, "submit", "--nodes", "1", "sleep", "600"], env=environment)()
        sides = {
            f"clusterrun status, {RUNS} live runs": process([CLUSTERRUN, "status"], env=environment),
            "squeue": process(["squeue"], env=environment),
        }
        print(table("\nstatus, whole process", in_turn(sides, ROUNDS), "≤ squeue + 60 ms"))


def queued(side: Side) -> Side:
    """Return the side with an empty queue before each call.

    The job of the call before would slow the next one.
    """

    def once() -> float:
        seconds = side()
        until = time.monotonic() + 60
        while subprocess.run(["squeue", "-h"], capture_output=True, timeout=30, check=True).stdout.strip():
            if time.monotonic() > until:
                raise RuntimeError("a job of the benchmark did not end within 60 s")
            time.sleep(0.2)
        return seconds

    return once


if __name__ == "__main__":
    main()
