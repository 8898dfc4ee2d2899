"""Features of newer releases of Slurm, on the releases that have them; see tests/test_slurm_releases.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.lab import conf, roots
from tests.lab.test_sites import SIZE, SYSTEM_PYTHON, Trained, cancelled, project
from tests.lab.test_slurm_runs import Site, until
from tests.lab_fixture import SLURM_VARIABLE, MakeLab

pytestmark = pytest.mark.lab


def since(release: str) -> None:
    """Skip if the labs of this session run an older Slurm."""
    local = roots.choose_root(os.environ.get(SLURM_VARIABLE, "")).version
    if conf.release(local) < conf.release(release):
        pytest.skip(f"Slurm {release} brought it, this is {local}")


def exec_beside(lab_site: Site) -> None:
    """Run a step beside a run that trains. Then end both."""
    answer = lab_site.submit(*SIZE, "--python", SYSTEM_PYTHON, "--preflight", "off", "work.py", "stay")
    until(lambda: len(list(filter(None, lab_site.outputs(answer).values()))) == 4)
    result = lab_site.run("exec", "--rank", "3", "--", "sh", "-c", 'echo "$RANK"')
    assert (result.code, result.out) == (0, "3\n"), result
    assert lab_site.run("cancel", answer["run_id"]).code == 0


def test_a_run_works_if_the_job_starts_its_steps(make_lab: MakeLab, tmp_path: Path) -> None:
    since("24.05")
    settings = {"SlurmctldParameters": "enable_stepmgr", "PrologFlags": "Contain"}
    lab = make_lab(nodes=2, gpus=2, settings=settings)
    local = project(lab, tmp_path)
    Trained(local).check()
    exec_beside(local)
    cancelled(local)
    lab.down()
