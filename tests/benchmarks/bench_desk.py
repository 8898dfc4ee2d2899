"""What the desk's commands cost on a real Slurm, beside Slurm's own and a bare submitit; on its own lab."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from tests.benchmarks.measure import Side, in_turn, process, table

ROUNDS = 15
RUNS = 10
INSIDE = "CLUSTERRUN_BENCH_INSIDE"
CLUSTERRUN = str(Path(sys.executable).parent / "clusterrun")
SUBMITIT = """
import sys
import submitit
executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(nodes=4, ntasks_per_node=1, time=5)
executor.submit(print, "hello")
"""


def main() -> None:
    """Bring up a lab of 4 nodes, measure on its login host, take it down."""
    if os.environ.get(INSIDE):
        measure()
        return
    lab = Lab(f"bench{os.getpid()}")
    try:
        lab.up(LabSpec(name=lab.name))
        argv, environment = lab.entering("login", {**os.environ, INSIDE: "1"}, os.getcwd(), "")
        command = [*argv, sys.executable, "-m", "tests.benchmarks.bench_desk"]
        subprocess.run(command, env=environment, timeout=900, check=True)
    finally:
        lab.down()


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
    """The side, each time with an empty queue: what the job before it does would fall on the next one."""

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
