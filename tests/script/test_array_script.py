"""The script of an array: its options are those of a run's script, and each task becomes its own run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusterrun.script.array_script import array_script

HEAD = """#!/bin/sh -e
#SBATCH --time=10
# a comment

#SBATCH "--comment=a b"
set -e
#SBATCH --late=1
"""


# Functions that a submitting shell may export: none of them takes over the script.
FUNCTIONS = {f"BASH_FUNC_{name}%%": "() { echo function; }" for name in ("break", "exec", "sleep")}


def test_a_task_becomes_the_run_at_its_number_wherever_the_runs_lie(tmp_path: Path) -> None:
    runs = tmp_path / "it's $(touch owned) a\\b"
    for name in ("r0", "r1"):
        (runs / name).mkdir(parents=True)
        (runs / name / "script.sh").write_text(f"echo {name} $1\n")
    script = array_script(HEAD, str(runs), {0: "r0", 3: "r1"})
    assert [line for line in script.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --time=10",
        '#SBATCH "--comment=a b"',
    ]
    messages = [
        subprocess.run(
            ["bash", "-c", script],
            env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": task, **FUNCTIONS},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        for task in "03"
    ]
    assert (messages, list(tmp_path.iterdir())) == (["r0\n", "r1\n"], [runs])
