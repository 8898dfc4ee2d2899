"""Jobs of a node have too little memory. The kernel kills a rank there, and the run reports it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.test_slurm_runs import site
from tests.monitor.memory_limit import limited

pytestmark = pytest.mark.lab

MEBIBYTE = 1 << 20
EATS = """
import os, time
if os.environ["RANK"] == "1":
    eaten = bytearray(2000 << 20)
time.sleep(600)
"""


def test_a_kill_by_the_kernel_for_memory_is_reported_with_its_reason(lab: Lab, tmp_path: Path) -> None:
    local = site(lab, tmp_path)
    (local.project / "train.py").write_text(EATS)
    with limited("n0002", 500 * MEBIBYTE) as group:
        for process in lab.processes():
            if (process.host, process.name) == ("n0002", "slurmd"):
                (group / "cgroup.procs").write_text(str(process.process))
        options = ("--nodes", "2", "--ranks-per-node", "1", "--gpus", "0", "--nodelist", "n0001,n0002")
        result = local.run("submit", *options, "--wait", "train.py", limit=240)
    text = "rank 1 on n0002 was killed by signal 9 (SIGKILL), as the kernel does when memory runs out"
    assert (result.code, text in result.err) == (1, True), result.err
    status = local.run("status", "last").out
    assert "OUT_OF_MEMORY" in status and "the kernel ended a process of this job on this node" in status
    document = json.loads(local.run("diagnose", "--json").out)
    assert (
        document["verdict"],
        [(culprit["rank"], culprit["node"]) for culprit in document["culprits"]],
    ) == ("out of memory", [(1, "n0002")])
