"""An ordinary user gets a lab too, where the kernel opens user namespaces to everybody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
NOBODY = 65534
REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""The distribution's: the one these tests run in may lie where only root may go."""

TRY = """
import json, os, sys, time
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.model.errors import BadInput

lab, folder, said = Lab("mine"), sys.argv[1], {}
lab.up(LabSpec(name="mine", nodes=3, gpus=2))
words = ["sh", "-c", "echo $(hostname) $(id -u) $CUDA_VISIBLE_DEVICES"]
job = lab.exec(["srun", "-N3", "--gpus-per-node=2", *words])
said["job"] = sorted(job.out.splitlines())
lab.fault("cut", "n0002")
said["cut"] = lab.exec(["timeout", "1", "scontrol", "ping"], host="n0002").code != 0
lab.heal()
lab.fault("disk-full", "n0001", path=folder)
write = ["sh", "-c", f"head -c 999999 /dev/zero >{folder}/f"]
said["full"] = "No space left" in lab.exec(write, host="n0001").err
lab.heal()
lab.fault("kill", "n0003")
lab.heal()
said["idle"] = lab.wait_idle(90)
try:
    lab.exec(["true"], user="alice")
except BadInput as error:
    said["alice"] = error.seen
lab.down()
said["left"] = os.path.exists(os.environ["CLUSTERRUN_LAB_HOME"])
print(json.dumps(said))
"""


def as_nobody(*argv: str, home: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    arguments = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *argv]
    places = {"HOME": home, "CLUSTERRUN_LAB_HOME": f"{home}/labs", "PYTHONPATH": str(REPOSITORY)}
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **places}
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=environment, cwd="/")


@pytest.fixture
def home() -> Iterator[str]:
    """Yield a folder of the user nobody. Skip where nobody cannot have a lab."""
    if os.geteuid() != 0 or shutil.which("slurmctld", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("becoming an ordinary user takes root, and a lab takes Slurm")
    if as_nobody("unshare", "--user", "--map-root-user", "--net", "true").returncode != 0:
        pytest.skip("this kernel opens user namespaces to root only")
    if as_nobody(PYTHON, "-c", "import clusterrun.lab.lab").returncode != 0:
        pytest.skip(f"an ordinary user cannot reach {PYTHON} or the code")
    folder = tempfile.mkdtemp(prefix="without-root-", dir="/tmp")
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def test_a_lab_without_root_runs_jobs_and_has_faults(home: str) -> None:
    os.mkdir(f"{home}/disk")
    os.chown(f"{home}/disk", NOBODY, NOBODY)
    result = as_nobody(PYTHON, "-c", TRY, f"{home}/disk", home=home)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "job": [f"n000{number} {NOBODY} 0,1" for number in (1, 2, 3)],
        "cut": True,
        "full": True,
        "idle": True,
        "alice": "without root a lab has one user, and 'alice' is not it",
        "left": False,
    }


def test_a_feature_that_needs_root_is_refused_with_that_reason(home: str) -> None:
    code = "from clusterrun.lab import needs; from clusterrun.lab.spec import *\n"
    code += "needs.check(LabSpec(accounting=True))"
    assert "--accounting needs root" in as_nobody(PYTHON, "-c", code, home=home).stderr
