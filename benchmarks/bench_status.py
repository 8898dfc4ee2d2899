"""Measure `status`, `TAB` and the search for a run by name with thousands of old runs, which are not read."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import in_turn, process, table
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunRecord, RunState
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.runs.store import Store, _text, run_id

MANY, FEW = 5000, 10
ROUNDS = 15
SPEC = JobSpec(command=("train.py",), cwd="/tmp", nodes=4, gpus=8)


def main() -> None:
    """Compare two homes that differ in the number of their runs."""
    program = str(Path(sys.executable).with_name("clusterrun"))
    with tempfile.TemporaryDirectory() as folder:
        sides = {}
        for count in (MANY, FEW):
            home = Path(folder, str(count))
            fill(Store(str(home)), count)
            environment = {"PATH": os.defpath, "HOME": folder, "CLUSTERRUN_HOME": str(home)}
            for arguments in (["status"], ["status", "name00001"], ["status", "1"]):
                name = f"clusterrun {' '.join(arguments)}, {count} runs"
                sides[name] = process([program, *arguments], env=environment)
        print(table(f"status among {MANY} ended runs", in_turn(sides, ROUNDS), f"near that of {FEW} runs"))


def fill(store: Store, count: int) -> None:
    """Write ``count`` runs that completed, the oldest with job id 0."""
    now = time.time() - 60 * count
    for number in range(count):
        name, at = f"name{number:05d}", now + 60 * number
        chosen = run_id(name, at, os.urandom(2))
        store.claim(chosen)
        paths = store.paths(chosen)
        record = RunRecord(chosen, name, "slurm", "token", replace(SPEC, name=name), at, str(number))
        state = RunState(chosen, 0, State.COMPLETED, Phase.ENDED, "", "n1", 7, at, (), at, at + 9, 0)
        Path(paths.record).write_text(_text(record))
        Path(paths.state).write_text(_text(state))


if __name__ == "__main__":
    main()
