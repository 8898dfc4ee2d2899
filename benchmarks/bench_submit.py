"""Measure `submit` as a whole process, beside minimal scripts that submit with submitit."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import cpu_of, in_turn, process, table
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec

ROUNDS = 25
MINIMAL = """
import sys
import submitit

def work():
    return 0

executor = submitit.{kind}(folder=sys.argv[1])
executor.update_parameters({parameters}, {prefix}additional_parameters={{"hold": True}})
print(executor.submit(work).job_id)
"""
AUTO = MINIMAL.format(
    kind="AutoExecutor", parameters="nodes=4, tasks_per_node=1, gpus_per_node=8", prefix="slurm_"
)
DIRECT = MINIMAL.format(
    kind="SlurmExecutor", parameters="nodes=4, ntasks_per_node=1, gpus_per_node=8", prefix=""
)


def main() -> None:
    """Start a lab and measure on its login host, so that the way into the lab is not measured."""
    lab = Lab(f"bench-submit-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=4, gpus=8))
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = lab.exec([sys.executable, "-m", "benchmarks.bench_submit", folder], timeout=600)
        print(result.out, result.err, sep="", end="")
        if result.code:
            raise SystemExit(result.code)
    finally:
        lab.down()


def measure(folder: Path) -> None:
    """Measure all sides. All jobs are held, so that none runs meanwhile."""
    for name, text in (("auto.py", AUTO), ("direct.py", DIRECT), ("train.py", "")):
        (folder / name).write_text(text)
    (folder / "job.sh").write_text("#!/bin/bash\ntrue\n")
    program = str(Path(sys.executable).with_name("clusterrun"))
    environment = {**os.environ, "CLUSTERRUN_HOME": str(folder / "home")}
    ours = [program, "submit", "--nodes", "4", "--gpus", "8", "--sbatch", "hold", "train.py"]
    bare = [
        "sbatch",
        "--parsable",
        "--hold",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "job.sh",
    ]
    python = sys.executable
    sides = {
        "clusterrun submit": process(ours, env=environment, cwd=folder),
        "sbatch alone": process(bare, cwd=folder),
        "submitit's SlurmExecutor": process([python, "direct.py", str(folder / "log")], cwd=folder),
        "submitit's AutoExecutor": process([python, "auto.py", str(folder / "log")], cwd=folder),
    }
    goal = "≤ 1.0 × of submitit's AutoExecutor, ≤ 1.25 × of its SlurmExecutor"
    print(table("submit a job of 4 nodes, whole process", in_turn(sides, ROUNDS), goal))
    # Waits and other work on the machine do not count here.
    cpu_sides = {name: cpu_of(side) for name, side in sides.items()}
    print(table("the same, CPU time", in_turn(cpu_sides, ROUNDS)))


if __name__ == "__main__":
    measure(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
