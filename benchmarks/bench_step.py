"""Measure a training step under clusterrun and under bare srun. No part of ours is between the ranks."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Side, in_turn, table
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec

ROUNDS = 9
NODES = 2
TRAIN = [str(Path(__file__).resolve().parents[1] / "jobs" / "train.py"), "--epochs", "30", "--device", "cpu"]
AS_A_RANK = 'RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=n0001 exec "$@"'


def side(lab: Lab, command: list[str], environment: dict[str, str]) -> Side:
    """Return a side that trains on the lab and returns the seconds of a step."""

    def once() -> float:
        result = lab.exec(command, env=environment, timeout=300)
        speed = re.search(r"steps_per_second=([\d.]+)", result.out)
        if result.code or speed is None:
            raise RuntimeError(f"{command} ended with {result.code}:\n{result.out}{result.err}")
        return 1 / float(speed[1])

    return once


def main() -> None:
    """Run the same script, steps and ranks on two nodes of one lab, in turn."""
    lab = Lab(f"bench-step-{os.getpid()}")
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "CLUSTERRUN_HOME": home, "OMP_NUM_THREADS": "1", "MASTER_PORT": "29511"}
        size = [
            f"--nodes={NODES}",
            f"--ntasks={NODES}",
            "--ntasks-per-node=1",
            "--cpu-bind=none",
            "--mpi=none",
        ]
        rank = ["bash", "-c", AS_A_RANK, "bash", sys.executable, "-u"]
        ours = [
            str(Path(sys.executable).parent / "clusterrun"),
            "submit",
            f"--nodes={NODES}",
            "--follow",
            *TRAIN,
        ]
        try:
            lab.up(LabSpec(name=lab.name, nodes=NODES, gpus=0))
            sides = {
                "clusterrun submit": side(lab, ours, environment),
                "bare srun": side(
                    lab, ["srun", *size, "--cpu-bind=none", "--mpi=none", *rank, *TRAIN], environment
                ),
            }
            print(table(f"a step of jobs/train.py, {NODES} nodes", in_turn(sides, ROUNDS), "no difference"))
        finally:
            lab.down()


if __name__ == "__main__":
    main()
