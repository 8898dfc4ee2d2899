"""Run a benchmark on the login host of a lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec

INSIDE = "CLUSTERRUN_BENCH_INSIDE"
CLUSTERRUN = str(Path(sys.executable).parent / "clusterrun")


def on_login(name: str, measure: Callable[[], None]) -> None:
    """Start a lab of 4 nodes, run the benchmark ``name`` on its login host, end the lab.

    On the login host this function calls ``measure``.
    """
    if os.environ.get(INSIDE):
        measure()
        return
    lab = Lab(f"{name}{os.getpid()}")
    try:
        lab.up(LabSpec(name=lab.name))
        argv, environment = lab.entering("login", {**os.environ, INSIDE: "1"}, os.getcwd(), "")
        command = [*argv, sys.executable, "-m", f"benchmarks.bench_{name}"]
        subprocess.run(command, env=environment, timeout=900, check=True)
    finally:
        lab.down()
