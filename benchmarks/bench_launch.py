"""Measure a run from job start to exit, beside bare srun and torchrun in the same allocation."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Measured, table
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.model.document import encode
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.script.pack import agent_program
from clusterrun.script.plan import MachineFacts, plan

PYTHON = sys.executable
LIMIT = 1500
TIMED = """#!/bin/bash
cd {folder}
timed() {{
  local name=$1 began=$EPOCHREALTIME; shift
  "$@" >>{folder}/said 2>&1 </dev/null || echo "$name: exit $?" >>{folder}/failed
  echo "$name $began $EPOCHREALTIME" >>{folder}/times
}}
{rounds}
"""


def main() -> None:
    """Measure every figure on a lab of its own size, or the figure that the argument names."""
    figures = {"empty": empty_ranks, "torchrun": against_torchrun, "ten-thousand": ten_thousand}
    for name in sys.argv[1:] or figures:
        figures[name]()


def empty_ranks() -> None:
    """Start 64 nodes × 8 empty Python ranks, beside the same processes under bare srun."""
    results, _ = compare(64, 8, ("empty.py",), 7, bare_srun)
    print(table("64 nodes × 8 empty Python ranks, start → exit", results, "≤ 1.5 ×"), flush=True)


def against_torchrun() -> None:
    """Start 16 nodes × 8 ranks, beside torchrun under srun with its own rendezvous."""
    results, _ = compare(16, 8, ("empty.py",), 3, torchrun_under_srun)
    print(table("16 nodes × 8 empty Python ranks, start → exit", results, "≤ 0.14 ×"), flush=True)


def ten_thousand() -> None:
    """Start 1,250 nodes × 8 ranks of `true`. All 10,000 exits must be seen."""
    results, reasons = compare(1250, 8, ("/bin/true",), 1, bare_srun, warm=0)
    print(table("1,250 nodes × 8 ranks of `true`", results, "completes, all exits seen", 1, "s"))
    print("\n".join(reasons), flush=True)


Rival = Callable[[int, int, tuple[str, ...]], tuple[str, ...]]


def bare_srun(nodes: int, ranks: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that starts the same processes by srun alone."""
    size = (f"--nodes={nodes}", f"--ntasks={nodes * ranks}", f"--ntasks-per-node={ranks}")
    return ("srun", *size, "--cpu-bind=none", "--mpi=none", *command)


def torchrun_under_srun(nodes: int, ranks: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that starts one torchrun on each node. They meet at the first node."""
    size = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=n0001:29400", "--rdzv-id=bench")
    sizes = (f"--nnodes={nodes}", f"--nproc-per-node={ranks}")
    return ("srun", *size, PYTHON, "-m", "torch.distributed.run", *sizes, *meeting, command[-1])


def compare(
    nodes: int, ranks: int, command: tuple[str, ...], rounds: int, rival: Rival, warm: int = 1
) -> tuple[tuple[Measured, ...], list[str]]:
    """Run ours and its rival in turn in one allocation. Return the times, and the end of each of our runs."""
    lab = Lab(f"bench-launch-{os.getpid()}")
    folder = Path(tempfile.mkdtemp(prefix="clusterrun-bench-"))
    (folder / "empty.py").write_text("")
    try:
        lab.up(LabSpec(name=lab.name, nodes=nodes, gpus=ranks))
        runs = [prepared(folder, number, nodes, ranks, command) for number in range(warm + rounds)]
        argv = (PYTHON, "-u", *command) if command[0].endswith(".py") else command
        theirs = shlex.join(("timed", rival.__name__, *rival(nodes, ranks, argv)))
        ours = [shlex.join(("timed", "clusterrun", *coordinate(run))) for run in runs]
        lines = [line for line_of_ours in ours for line in (line_of_ours, theirs)]
        (folder / "job.sh").write_text(TIMED.format(folder=folder, rounds="\n".join(lines)))
        job(lab, folder, nodes, ranks)
        return times(folder / "times", warm), [
            json.loads(Path(run.state).read_text())["reason"] for run in runs
        ]
    finally:
        lab.down()
        shutil.rmtree(folder)


def job(lab: Lab, folder: Path, nodes: int, ranks: int) -> None:
    """Measure everything in one allocation."""
    size = (f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={ranks}", f"--gpus-per-node={ranks}")
    argv = ["sbatch", "--wait", "--output=/dev/null", *size, str(folder / "job.sh")]
    result = lab.exec(argv, timeout=LIMIT)
    if result.code or (folder / "failed").exists():
        errors = [
            (folder / name).read_text()[-2000:] for name in ("failed", "said") if (folder / name).exists()
        ]
        raise SystemExit("\n".join([result.err, *errors]))


def coordinate(run: RunPaths) -> tuple[str, ...]:
    """Return the command that replaces the batch script's shell."""
    return (PYTHON, "-I", "-S", run.agent, "coordinate", run.run_dir)


def prepared(folder: Path, number: int, nodes: int, ranks: int, command: tuple[str, ...]) -> RunPaths:
    """Make a run directory as `submit` does."""
    run = RunPaths(str(folder / f"run-{number}"))
    os.mkdir(run.run_dir, 0o700)
    spec = JobSpec(command, cwd=str(folder), nodes=nodes, gpus=ranks, preflight="off")
    planned = plan(spec, f"run-{number}", "token", run.run_dir, MachineFacts(slurm=True, python=PYTHON))
    Path(run.orders).write_text(json.dumps(encode(planned.orders)))
    shutil.copy(agent_program(str(folder / "cache")), run.agent)
    return run


def times(path: Path, warm: int) -> tuple[Measured, ...]:
    """Return the seconds between the two clock readings of each line."""
    taken: dict[str, list[float]] = {}
    for line in path.read_text().splitlines():
        name, began, ended = line.split()
        taken.setdefault(name.replace("_", " "), []).append(float(ended) - float(began))
    return tuple(Measured(name, tuple(values[warm:])) for name, values in taken.items())


if __name__ == "__main__":
    main()
