"""A cancelled run leaves nothing on any node, whatever its ranks became and however the site tracks them."""

from __future__ import annotations

import shutil
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
    remaining = leftovers(site, 5)
    site.exec(["scancel", "--quiet", "--user=root"])  # what one test failed to end is not the next one's
    assert remaining == []
    assert site.wait_idle(90), site.node_states()


def gone(user: Person, run: Path, by: str = "cancel") -> None:
    """Cancel by ``by``. Check that no process lives and Slurm has forgotten the job."""
    assert user.lab
    if by == "scancel":
        assert user.lab.exec(["scancel", user.status(run)["job_id"]]).code == 0
        assert user.types("wait", run.name).code == 1
    else:
        result = user.types("cancel", run.name)
        assert result.code == 0, result.err
    assert user.reaches(run, "CANCELLED")["phase"] == "ended"
    assert leftovers(user.lab, 60.0) == []
    assert user.lab.wait_idle(90), (user.lab.exec(["squeue"]).out, (run / "job.out").read_text())
    assert user.lab.exec(["squeue", "-h"]).out == ""


@pytest.mark.lab
@pytest.mark.parametrize(("how", "by"), [("", "cancel"), ("stop", "cancel"), ("", "scancel")])
def test_cancel_removes_all_of_a_run_that_trains(user: Person, how: str, by: str) -> None:
    run = user.submits("--nodes", "2", "--ranks-per-node", "2", "family.py", how)
    user.up(run, 4)
    until(lambda: len(marked(run)) >= 4 * 5, "the families of all ranks")
    gone(user, run, by)


@pytest.mark.lab
def test_cancel_removes_all_of_a_run_that_starts(user: Person) -> None:
    for phase in ("--setup=:", "--setup=sleep 300"):
        run = user.submits("--nodes", "2", phase, "family.py")
        if "300" in phase:
            user.reaches(run, "RUNNING")
        gone(user, run)


@pytest.mark.lab
def test_cancel_removes_all_of_a_queued_run(user: Person) -> None:
    run = user.submits("--sbatch", "hold", "family.py")
    user.reaches(run, "PENDING")
    gone(user, run)
    assert not (run / "attempts").exists()


def test_cancel_removes_all_of_a_local_run(person: Person) -> None:
    shutil.copy(FAMILY, person.folder)
    for how in ("", "stop"):
        run = person.submits("--nodes", "2", "--ranks-per-node", "2", "family.py", how)
        person.up(run, 4)
        assert person.types("cancel", "--kill-wait", "3s", run.name).code == 0
        assert person.reaches(run, "CANCELLED")["phase"] == "ended"
        assert marked(run) == []
