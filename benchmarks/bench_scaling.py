"""Measure `bench scaling`: the whole command against the sum of its runs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
SECONDS = 5
"""Duration of each run. A real run takes minutes, but its overhead is the same."""
TRAINING = f"""
import os, time
time.sleep({SECONDS})
if os.environ["RANK"] == "0":
    print("steps_per_second=10")
"""
LIMIT = 300
GOAL = "at most 5 % of the sum of the runs"


def main() -> None:
    """Run some studies of four runs each, one after another."""
    with tempfile.TemporaryDirectory(prefix="clusterrun-bench-") as folder:
        (Path(folder) / "train.py").write_text(TRAINING)
        studies = [study(folder, number) for number in range(ROUNDS)]
    shares = [whole / runs - 1 for whole, runs in studies]
    print(f"{ROUNDS} studies of 4 runs of {SECONDS} s")
    for (whole, runs), share in zip(studies, shares, strict=True):
        print(f"  whole command {whole:.2f} s, its runs {runs:.2f} s: {share:.1%} on top")
    print(f"median {statistics.median(shares):.1%}; goal: {GOAL}", flush=True)


def study(folder: str, number: int) -> tuple[float, float]:
    """Return the seconds of the whole command, and of its runs from their submission to their end."""
    command = ("bench", "scaling", "--no-probe", "--worlds", "1,2", "--repeats", "2", "--oversubscribe")
    began = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "clusterrun", *command, "--cluster", "local", "--json", "train.py"],
        cwd=folder,
        env={
            **os.environ,
            "CLUSTERRUN_HOME": f"{folder}/home-{number}",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    seconds = time.perf_counter() - began
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)
    return seconds, json.loads(result.stdout)["seconds"]["runs"]


if __name__ == "__main__":
    main()
