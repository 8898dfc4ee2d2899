"""Measure the start of the command line. Every TAB and every `status` pays it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import in_turn, process, table

ROUNDS = 20


def main() -> None:
    """Compare starts with that of a Python that does nothing."""
    program = shutil.which("clusterrun", path=str(Path(sys.executable).parent))
    if program is None:
        raise SystemExit("clusterrun is not installed beside this Python: make bench installs it")
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "CLUSTERRUN_HOME": home, "PATH": "/usr/bin:/bin"}
        sides = {
            "clusterrun --help": process([program, "--help"], env=environment),
            "clusterrun submit --help": process([program, "submit", "--help"], env=environment),
            "clusterrun status, no runs": process([program, "status"], env=environment),
            "python -c 'import click'": process([sys.executable, "-c", "import click"], env=environment),
            "python -c pass": process([sys.executable, "-c", "pass"], env=environment),
        }
        print(table("start of the command line", in_turn(sides, ROUNDS), "--help ≤ 60 ms over a bare Python"))


if __name__ == "__main__":
    main()
