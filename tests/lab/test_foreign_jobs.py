"""A job of plain `sbatch` and `srun` hangs: it is diagnosed, shown and entered beside its ranks."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.lab.test_slurm_runs import Site, on_slurm, until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        not Path(sys.executable).with_name("py-spy").exists() and shutil.which("py-spy") is None,
        reason="py-spy is not installed",
    ),
]
__all__ = ["on_slurm"]

# A rank of Python alone: it waits in a function with the path and the name of torch's all_reduce.
ALL_REDUCE = """
import threading
def all_reduce():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""
TRAIN = """
import os, sys, time
sys.path.insert(0, "site-packages/torch/distributed")
from distributed_c10d import all_reduce
def step(number):
    open("up-" + os.environ["SLURM_PROCID"], "w").close()
    while os.environ["SLURM_PROCID"] == "3":
        time.sleep(60)
    all_reduce()
step(7)
"""


HETEROGENEOUS = """#!/bin/bash
#SBATCH --ntasks=1 --output=out
#SBATCH hetjob
#SBATCH --ntasks=2
srun --het-group=0,1 sleep 600
"""


def test_all_components_of_a_heterogeneous_job_are_entered(on_slurm: Site) -> None:
    """The second component has the next job number, but only the number of the first places a step."""
    (on_slurm.project / "het.sh").write_text(HETEROGENEOUS)
    job = on_slurm.lab.exec(["sbatch", "--parsable", "het.sh"], cwd=str(on_slurm.project)).out.strip()
    number = "echo $SLURM_PROCID $(hostname)"
    try:
        until(lambda: "sleep" in on_slurm.lab.exec(["squeue", "-hs", "-j", job, "-o", "%j"]).out)
        result = on_slurm.run("exec", str(int(job) + 1), "--rank", "2", "--", "sh", "-c", number)
        rank, node = result.out.split()
        nodes = on_slurm.lab.exec(["squeue", "-h", "-j", job, "-o", "%N"]).out.split()
        assert (rank, node) == ("2", nodes[-1]), result.err
    finally:
        on_slurm.lab.exec(["scancel", job])


def test_a_job_that_clusterrun_did_not_start_is_diagnosed_shown_and_entered(on_slurm: Site) -> None:
    module = on_slurm.project / "site-packages" / "torch" / "distributed" / "distributed_c10d.py"
    module.parent.mkdir(parents=True)
    module.write_text(ALL_REDUCE)
    (on_slurm.project / "train.py").write_text(TRAIN)
    script = f"srun {sys.executable} -S train.py"
    options = ("--parsable", "--nodes=2", "--ntasks-per-node=2", "--job-name=own", "--output=out")
    job = on_slurm.lab.exec(["sbatch", *options, "--wrap", script], cwd=str(on_slurm.project)).out.strip()
    try:
        until(lambda: len(list(on_slurm.project.glob("up-*"))) == 4)
        result = on_slurm.run("diagnose", "--json", job)
        assert result.code == 0, result.err
        diagnosis = json.loads(result.out)
        (culprit,) = diagnosis["culprits"]
        node = on_slurm.run(
            "exec", job, "--rank", "3", "--", "sh", "-c", "echo $SLURM_PROCID $(hostname) $PWD"
        )
        number, host, folder = node.out.strip().split(" ", 2)
        assert (number, folder) == ("3", str(on_slurm.project)), node.err
        assert "srun" not in node.err, node.err
        assert (diagnosis["verdict"], culprit["rank"], culprit["node"]) == ("rank never arrived", 3, host)
        assert culprit["why"].startswith("it waits in user code at train.py:8 (step)")
        # How long they have waited is known only if the kernel did not run them since the look before.
        assert re.match(r"ranks 0-2 .* in all_reduce at train.py:9 .* for rank 3$", diagnosis["evidence"][0])

        document = json.loads(on_slurm.run("top", "--once", "--json", "own").out)
        ranks = [(rank["rank"], use["node"] == host) for use in document["nodes"] for rank in use["ranks"]]
        assert ranks == [(0, False), (1, False), (2, True), (3, True)]
        listing = on_slurm.run("status", "--all-jobs", "--name", "ow?", "--state", "live", "--json").out
        jobs = json.loads(listing)["jobs"]
        assert [(line["job_id"], line["state"], line["run"]) for line in jobs] == [(job, "RUNNING", None)]
    finally:
        on_slurm.lab.exec(["scancel", job])


def test_a_job_that_has_ended_is_diagnosed_by_the_files_of_its_steps(on_slurm: Site) -> None:
    code = 'import os; assert os.environ["SLURM_PROCID"] == "0", "only one"'
    script = f"srun --output=step-%j-%t.txt {sys.executable} -c '{code}'"
    options = ("--parsable", "--wait", "--nodes=2", "--ntasks-per-node=1", "--output=batch-%j.txt")
    job = on_slurm.lab.exec(["sbatch", *options, "--wrap", script], cwd=str(on_slurm.project)).out.strip()
    result = on_slurm.run("diagnose", "--json", job)
    diagnosis = json.loads(result.out)
    assert [culprit["rank"] for culprit in diagnosis["culprits"]] == [1], result.err
    assert "AssertionError: only one" in diagnosis["culprits"][0]["why"]
