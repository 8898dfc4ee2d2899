"""What a training step costs under clusterrun and under torchrun: nothing of ours stands between ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measure import Side, in_turn, table

ROUNDS = 5
RANKS = 2
HERE = Path(sys.executable).parent
TRAIN = [str(Path(__file__).resolve().parents[2] / "jobs" / "train.py"), "--epochs", "20", "--device", "cpu"]


def side(command: list[str], environment: dict[str, str]) -> Side:
    """A side that trains, and takes the seconds that the steps themselves took."""

    def once() -> float:
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        told = re.search(r"trained (\d+) steps on \d+ ranks in ([\d.]+) s", run.stdout)
        if run.returncode or told is None:
            raise RuntimeError(f"{command} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        return float(told[2]) / int(told[1])

    return once


def main() -> None:
    """The same script, steps and ranks on this machine, in turn."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "CLUSTERRUN_HOME": home, "OMP_NUM_THREADS": "1"}
        ours = [str(HERE / "clusterrun"), "submit", "--cluster", "local", "--ranks-per-node", str(RANKS)]
        torchs = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        sides = {
            "clusterrun submit --follow": side([*ours, "--follow", *TRAIN], environment),
            "torchrun": side([*torchs, *TRAIN], environment),
        }
        print(table(f"a step of jobs/train.py, {RANKS} CPU ranks", in_turn(sides, ROUNDS), "no difference"))


if __name__ == "__main__":
    main()
