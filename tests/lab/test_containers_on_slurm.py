"""Ranks in containers through real Slurm: Charliecloud, and the options of pyxis with a stand-in for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.container_image import make_image, mounts, python, why_no_charliecloud
from tests.lab.test_slurm_runs import Site, on_slurm, site, until
from tests.lab_fixture import SLURM_VARIABLE, MakeLab

pytestmark = pytest.mark.lab
__all__ = ["on_slurm"]

SHOW = """
import json, os, sys
where = [os.environ["RANK"], os.path.exists("/IMAGE"), os.readlink("/proc/self/ns/mnt"), os.getcwd()]
if os.environ["RANK"] == "1" and os.environ["CLUSTERRUN_ATTEMPT"] == "0":
    sys.exit("gives up")
print(json.dumps([*where, os.environ["MINE"]]))
"""
STAY = "import time; print('up', flush=True); time.sleep(600)"


def test_charliecloud_starts_again_and_lets_commands_in(on_slurm: Site, tmp_path: Path) -> None:
    if why := why_no_charliecloud():
        pytest.skip(why)
    if on_slurm.lab.state.root and not Path(on_slurm.lab.state.root, "usr/bin/ch-run").exists():
        pytest.skip("the nodes stand on another distribution's files, which have no Charliecloud")
    starts_again_and_lets_commands_in(on_slurm, make_image(tmp_path / "image"), "charliecloud")


def test_the_agents_run_behind_the_options_of_pyxis(make_lab: MakeLab, tmp_path: Path) -> None:
    source, plugin = Path(__file__).with_name("pyxis_stand_in.c"), tmp_path / "pyxis.so"
    if os.environ.get(SLURM_VARIABLE):
        pytest.skip("a SPANK plug-in fits the release that it was compiled for")
    if not shutil.which("gcc") or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("the stand-in for pyxis needs gcc and libslurm-dev to be compiled")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", plugin, source], check=True)
    stack = tmp_path / "plugstack.conf"
    stack.write_text(f"required {plugin}\n")
    lab = make_lab(nodes=2, gpus=0, settings={"PlugStackConfig": str(stack)})
    local = site(lab, tmp_path)
    assert "found here" in local.run("submit", "--dry-run", "--container", "a.sif", "tell.py").err
    image = make_image(tmp_path / "image.sqsh")
    starts_again_and_lets_commands_in(local, image, "pyxis")
    lab.down()


def starts_again_and_lets_commands_in(lab_site: Site, image: Path, runtime: str) -> None:
    (lab_site.project / "show.py").write_text(SHOW)
    (lab_site.project / "sleep.py").write_text(STAY)
    arguments = ["--nodes", "2", "--ranks-per-node", "2", "--preflight", "off", "--container", str(image)]
    arguments += ["--container-runtime", runtime, "--python", python(), "--max-restarts", "1"]
    arguments += [word for mount in mounts() for word in ("--mount", mount)]
    answer = lab_site.submit(*arguments, "--env", "MINE=a b'$x", "show.py")
    assert lab_site.run("wait", answer["run_id"]).code == 0, Path(answer["run_dir"], "job.out").read_text()
    results = [json.loads(text) for text in lab_site.outputs(answer, attempt=1).values()]
    assert sorted(mount[0] for mount in results) == ["0", "1", "2", "3"]
    assert [(mount[1], mount[3:]) for mount in results] == [(True, [str(lab_site.project), "a b'$x"])] * 4
    spaces = [mount[2] for mount in sorted(results)]
    assert spaces[0] == spaces[1] != spaces[2] == spaces[3], "one container per node"

    answer = lab_site.submit(*arguments, "sleep.py")
    until(lambda: list(lab_site.outputs(answer).values()) == ["up\n"] * 4)
    result = lab_site.run("exec", "--rank", "3", "--", "/bin/sh", "-c", "ls /IMAGE; echo $RANK; pwd")
    assert result.out == f"/IMAGE\n3\n{lab_site.project}\n", result.err
    assert lab_site.run("cancel", answer["run_id"]).code == 0
    lab_site.run("wait", answer["run_id"])
