"""Measure the start of ranks with Charliecloud and without it: 4 nodes × 2 ranks in a lab."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.container_image import make_image, mounts, python, why_no_charliecloud
from benchmarks.measure import in_turn, table
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec

NODES, RANKS, ROUNDS = 4, 2, 9
PROGRAM = str(Path(sys.executable).with_name("clusterrun"))


def main() -> None:
    """Measure from the start of the batch script to the first line of the last rank."""
    if why := why_no_charliecloud():
        print(why)
        return
    lab = Lab(f"bench-containers-{os.getpid()}")
    folder = Path(tempfile.mkdtemp(prefix="clusterrun-bench-"))
    (folder / "now.py").write_text("import time; print(time.time())\n")
    image = make_image(folder / "image")
    inside = ("--container", str(image), *(word for one in mounts() for word in ("--mount", one)))
    try:
        lab.up(LabSpec(name=lab.name, nodes=NODES, gpus=0))
        sides = {
            "in a container": lambda: start(lab, folder, inside),
            "without": lambda: start(lab, folder, ()),
        }
        measured = in_turn(sides, ROUNDS)
        print(table(f"{NODES} nodes × {RANKS} ranks, job start → last rank runs", measured, "≤ + 500 ms"))
        print(f"difference of the medians: {1000 * (measured[0].median - measured[1].median):.0f} ms")
    finally:
        lab.down()


def start(lab: Lab, folder: Path, options: tuple[str, ...]) -> float:
    """Return the seconds of one run."""
    began = folder / "began"
    size = ("--nodes", str(NODES), "--ranks-per-node", str(RANKS), "--preflight", "off")
    setup = ("--setup", f"date +%s.%N >{began}", "--python", python())
    home = {"CLUSTERRUN_HOME": str(folder / "home"), "NO_COLOR": "1"}
    command = [PROGRAM, "submit", "--json", "--wait", *size, *setup, *options, "now.py"]
    result = lab.exec(command, env=home, cwd=str(folder), timeout=120)
    assert result.code == 0, result.err
    logs = Path(json.loads(result.out)["run_dir"], "attempts", "000")
    ranks = [float(path.read_text()) for path in logs.glob("*.out")]
    assert len(ranks) == NODES * RANKS
    return max(ranks) - float(began.read_text())


if __name__ == "__main__":
    main()
