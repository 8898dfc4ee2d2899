"""A cancelled run leaves nothing on any node, whatever its ranks became and however the site tracks them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.hostile.conftest import Person, marked, until
from tests.lab_fixture import MakeLab, leftovers

FAMILY = Path(__file__).with_name("family.py")


@pytest.fixture(scope="module", params=["linuxproc", "pgid", "cgroup"])
def site(request: pytest.FixtureRequest, make_lab: MakeLab) -> Iterator[Lab]:
    lab = make_lab(nodes=2, gpus=0, proctrack=request.param)
    yield lab
    lab.down()


@pytest.fixture
def user(tmp_path: Path, site: Lab) -> Iterator[Person]:
    shutil.copy(FAMILY, tmp_path)
    yield Person(tmp_path, site)
    left = leftovers(site, 1)
    site.exec(["scancel", "--quiet", "--user=root"])  # what one test failed to end is not the next one's
    assert left == []
    assert site.wait_idle(20), site.node_states()


def gone(user: Person, run: Path, within: float) -> None:
    """Cancel, and see that nothing lives and Slurm has forgotten the job within so many seconds."""
    assert user.lab
    began = time.monotonic()
    done = user.types("cancel", run.name)
    assert done.code == 0, done.err
    assert user.reaches(run, "CANCELLED")["phase"] == "ended"
    assert leftovers(user.lab, within - (time.monotonic() - began)) == []
    assert user.lab.wait_idle(30), (user.lab.exec(["squeue"]).out, (run / "job.out").read_text())
    assert user.lab.exec(["squeue", "-h"]).out == ""


@pytest.mark.lab
@pytest.mark.parametrize("how", ["", "stop"])
def test_nothing_is_left_of_a_run_that_trained(user: Person, how: str) -> None:
    run = user.submits("--nodes", "2", "--ranks-per-node", "2", "family.py", how)
    user.up(run, 4)
    until(lambda: len(marked(run)) >= 4 * 5, "the families of all ranks")
    gone(user, run, within=10)


@pytest.mark.lab
def test_nothing_is_left_of_a_run_that_was_starting(user: Person) -> None:
    for phase in ("--setup=:", "--setup=sleep 300"):
        run = user.submits("--nodes", "2", phase, "family.py")
        if "300" in phase:
            user.reaches(run, "RUNNING")
        gone(user, run, within=15)


@pytest.mark.lab
def test_nothing_is_left_of_a_run_that_was_queued(user: Person) -> None:
    run = user.submits("--sbatch", "hold", "family.py")
    user.reaches(run, "PENDING")
    gone(user, run, within=10)
    assert not (run / "attempts").exists()


def test_nothing_is_left_on_this_machine(person: Person) -> None:
    shutil.copy(FAMILY, person.folder)
    for how, within in (("", 20.0), ("stop", 10.0)):
        run = person.submits("--nodes", "2", "--ranks-per-node", "2", "family.py", how)
        person.up(run, 4)
        began = time.monotonic()
        assert person.types("cancel", run.name).code == 0
        assert person.reaches(run, "CANCELLED")["phase"] == "ended"
        assert marked(run) == [] and time.monotonic() - began < within
