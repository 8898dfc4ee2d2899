"""Measure the submission of a sweep of 1,000 points beside a bare array, and count its queries of Slurm."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.measure import Side, in_turn, process, table
from benchmarks.on_login import CLUSTERRUN, on_login

ROUNDS, POINTS = 3, 1000
LIMIT = 600.0
"""Seconds: 7,000 files on a disk that others write to take minutes."""
PROGRAMS = ("sbatch", "squeue", "sinfo", "sacct", "scontrol", "scancel")


def main() -> None:
    """Measure on the login host of a lab of 4 nodes. No job starts."""
    on_login("sweep", measure)


def measure() -> None:
    """Queue the points, in turn with what it is measured against; count what asks the controller."""
    with tempfile.TemporaryDirectory() as folder:
        queries = Path(folder, "asked")
        environment = {
            **os.environ,
            "CLUSTERRUN_HOME": f"{folder}/home",
            "PATH": _counting(Path(folder), queries),
        }
        sweep = [CLUSTERRUN, "sweep", "--preflight", "off", "--at-most", "4", "--sbatch", "hold"]
        sweep += ["--set", "lr=range(10)", "--set", "seed=range(100)", "true", "{lr}", "{seed}"]
        bare = ["sbatch", "--hold", f"--array=0-{POINTS - 1}%4", "--wrap", "true"]
        used: list[float] = []
        sides = {
            f"clusterrun sweep of {POINTS} points": _using(
                process(sweep, LIMIT, env=environment, cwd=folder), used
            ),
            f"sbatch of an array of {POINTS} tasks": process(bare, cwd=folder),
        }
        print(table(f"{POINTS} points queued, whole process", in_turn(sides, ROUNDS), "≤ 5 s"))
        print(f"processor time of the sweep: {statistics.median(used):.1f} s; load {os.getloadavg()[0]:.0f}")
        counts = Counter(queries.read_text().split())
        each = {program: count / counts["sbatch"] for program, count in counts.items()}
        print("for each sweep Slurm was asked by", each)
        subprocess.run(["scancel", "--user", str(os.getuid())], timeout=60, check=True)


def _using(side: Side, used: list[float]) -> Side:
    """Return ``side``. It also records the CPU time of its process, which load does not change."""

    def once() -> float:
        before = os.times()
        seconds = side()
        after = os.times()
        used.append(sum(after[2:4]) - sum(before[2:4]))
        return seconds

    return once


def _counting(folder: Path, queries: Path) -> str:
    """Return a PATH on which each of Slurm's programs records its calls."""
    (folder / "bin").mkdir()
    for program in filter(shutil.which, PROGRAMS):
        path = folder / "bin" / program
        path.write_text(f'#!/bin/sh\necho {program} >> {queries}\nexec {shutil.which(program)} "$@"\n')
        path.chmod(0o755)
    return f"{folder}/bin:{os.environ['PATH']}"


if __name__ == "__main__":
    main()
