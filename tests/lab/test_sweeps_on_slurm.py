"""Sweeps are arrays on a real Slurm. Each task is a run that is ended and queued again separately."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.test_slurm_runs import Site, site, until
from tests.lab_fixture import leftovers

pytestmark = pytest.mark.lab

POINT = """
import os, sys, time
from clusterrun.training import report
report(loss=float(sys.argv[1]), restarts=int(os.environ["CLUSTERRUN_ATTEMPT"]), word=sys.argv[2])
go = sys.argv[1] + ".go"
while not os.path.exists(go):
    time.sleep(0.1)
"""


@pytest.fixture
def on_slurm(lab: Lab, tmp_path: Path) -> Site:
    created = site(lab, tmp_path)
    (created.project / "point.py").write_text(POINT)
    return created


def runs(on_slurm: Site, word: str) -> list[dict[str, Any]]:
    return list(json.loads(on_slurm.run("status", "--json", word).out)["runs"])


def test_runs_of_an_array_are_ended_requeued_and_read_separately(on_slurm: Site) -> None:
    options = ("--nodes", "2", "--requeue", "--name", "rates", "--at-most", "2", "--json")
    hostile = "$(touch owned) '\n {lr"
    created = on_slurm.run("sweep", *options, "--set", "lr=range(4)", "point.py", "{lr}", hostile)
    assert created.code == 0, created.err
    sweep = json.loads(created.out)
    until(lambda: [run["phase"] for run in runs(on_slurm, "rates")] == ["training"] * 2 + ["queued"] * 2)
    observed = runs(on_slurm, sweep["job_id"])
    assert [run["job_id"] for run in observed] == [f"{sweep['job_id']}_{task}" for task in range(4)]
    ids = [run["run_id"] for run in observed]

    on_slurm.lab.exec(["scontrol", "requeue", f"{sweep['job_id']}_1"])
    cancelled = on_slurm.run("cancel", "rates.2")
    assert (cancelled.code, cancelled.out) == (0, f"{ids[2]} CANCELLED\n")
    assert on_slurm.status("rates.0")["state"] == "RUNNING"
    beside = on_slurm.run("exec", "rates.0", "--", "printenv", "CLUSTERRUN_RUN_ID")
    assert (beside.code, beside.out) == (0, f"{ids[0]}\n"), beside.err
    for task in range(4):
        (on_slurm.project / f"{task}.go").touch()
    assert on_slurm.run("wait", "rates", limit=240).code == 1
    assert [run["state"] for run in runs(on_slurm, "rates")] == [
        "COMPLETED",
        "COMPLETED",
        "CANCELLED",
        "COMPLETED",
    ]
    result = json.loads(on_slurm.run("sweep", "results", "rates", "--json").out)["results"]
    assert [(entry["run_id"], entry["reported"].get("restarts")) for entry in result] == [
        (ids[0], 0),
        (ids[1], 1),
        (ids[3], 0),
        (ids[2], None),
    ]
    assert {entry["reported"]["word"] for entry in result[:3]} == {hostile}
    again = on_slurm.run("sweep", "retry", "--failed", "rates")
    assert (again.code, "1 run queued as job" in again.err) == (0, True), again.err
    assert on_slurm.run("wait", "rates").code == 0
    assert not (on_slurm.project / "owned").exists()


KILLED = """
import os, signal
from clusterrun.cli.main import main
from clusterrun.operations import sweep
sweep._ArrayQueue._send = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def test_sweep_points_of_a_client_killed_before_sbatch_are_queued_once(on_slurm: Site) -> None:
    """`sbatch` and a loop over points would have queued none of them either; the user types it again."""
    (on_slurm.project / "0.go").touch()
    (on_slurm.project / "1.go").touch()
    script = on_slurm.project / "killed.py"
    script.write_text(KILLED)
    arguments = (
        "sweep",
        "--preflight",
        "off",
        "--name",
        "lost",
        "--set",
        "lr=range(2)",
        "point.py",
        "{lr}",
        "x",
    )
    result = on_slurm.lab.exec(
        [sys.executable, str(script), *arguments],
        env={"CLUSTERRUN_HOME": str(on_slurm.home)},
        cwd=str(on_slurm.project),
    )
    assert result.code == -signal.SIGKILL, result.err
    assert on_slurm.lab.exec(["squeue", "-h", "--name", "lost"]).out == ""
    again = on_slurm.run("sweep", "continue", "lost")
    assert (again.code, "2 runs queued as job" in again.err) == (0, True), again.err
    assert on_slurm.run("wait", "lost").code == 0
    other = on_slurm.run("sweep", "continue", "lost")
    assert (other.code, "all its points were queued" in other.err) == (0, True), other.err
    assert len(list((on_slurm.home / "runs").iterdir())) == 2


def test_one_command_ends_a_whole_sweep(on_slurm: Site) -> None:
    result = on_slurm.run("sweep", "--at-most", "1", "--set", "lr=range(5)", "point.py", "{lr}", "x")
    assert result.code == 0, result.err
    until(lambda: runs(on_slurm, "point")[0]["phase"] == "training")
    ended = on_slurm.run("cancel", "last")
    assert (ended.code, ended.out.count(" CANCELLED\n")) == (0, 5)
    assert leftovers(on_slurm.lab, 60.0) == []
