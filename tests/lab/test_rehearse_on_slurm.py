"""A rehearsal through real Slurm kills a node's processes in an allocation and leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.lab.test_slurm_runs import PROGRAM, Site, on_slurm

pytest.importorskip("torch", reason="a rehearsed script trains")
pytestmark = [pytest.mark.lab, pytest.mark.slow]
__all__ = ["on_slurm"]

SCRIPT = Path(__file__).parents[1] / "rehearse" / "script.py"


def test_a_script_survives_a_lost_node_of_an_allocation(on_slurm: Site) -> None:
    shutil.copy(SCRIPT, on_slurm.project / "train.py")
    arguments = ("--cluster", "slurm", "--ranks-per-node", "1", "--faults", "node", "--json")
    result = on_slurm.run("rehearse", *arguments, "train.py", limit=600)
    document = json.loads(result.out)
    levels = [
        (row["fault"], [finding["level"] for finding in row["findings"]]) for row in document["results"]
    ]
    assert (result.code, levels) == (0, [("control", ["ok"]), ("node", ["ok"])]), result.out + result.err
    (node,) = document["results"][1]["findings"]
    assert "resumed at step 12" in node["said"]
    assert result.err.count("Granted job allocation") == 1
    assert sorted(os.listdir(on_slurm.project)) == ["stay.py", "tell.py", "train.py"]
    assert [name for name in os.listdir(on_slurm.home) if name.startswith("clusterrun-rehearse-")] == []


def test_an_allocation_that_is_too_small_is_refused_before_anything_is_copied(on_slurm: Site) -> None:
    again = "exec clusterrun rehearse --cluster slurm --nodes 2 train.py"
    result = on_slurm.run(
        "alloc", "--nodes", "1", "bash", "-c", again.replace("clusterrun", PROGRAM), limit=120
    )
    assert (result.code, "2 nodes are requested; job " in result.err) == (2, True), result.err
