"""The copy of the code on a real Slurm, beside plain sbatch and srun in the original."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.test_slurm_runs import Site, site
from tests.lab_fixture import Lab
from tests.runs.test_code_snapshot import git

pytestmark = pytest.mark.lab

SCRIPT = """
import os, subprocess
try:
    import package
except ImportError:
    package = None
git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
print(package and package.VALUE, os.path.abspath(__file__), git.stdout.strip(), sep="|", flush=True)
"""


@pytest.fixture
def lab_site(lab: Lab, tmp_path: Path) -> Site:
    local = site(lab, tmp_path)
    root = local.project
    for name, text in {
        "scripts/train.py": SCRIPT,
        "package/__init__.py": "VALUE = 'submitted'\n",
        ".gitignore": "/.venv/\n",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True, timeout=120)
    return local


@pytest.mark.parametrize(
    ("options", "command", "imported"),
    [
        ([], ["scripts/train.py"], "nothing, without git-lfs"),
        (["--python", ".venv/bin/python"], ["scripts/train.py"], "editable"),
        (["--setup", "source .venv/bin/activate"], ["scripts/train.py"], "editable"),
        ([], ["python3", "{project}/scripts/train.py"], "PYTHONPATH"),
    ],
)
def test_a_run_uses_the_copy_as_srun_uses_the_original(
    lab_site: Site, options: list[str], command: list[str], imported: str
) -> None:
    if lab_site.lab.state.root and not Path(lab_site.lab.state.root, "usr/bin/git").exists():
        pytest.skip("the nodes stand on another distribution's files, which have no git")
    root = lab_site.project
    if imported == "editable":
        (packages,) = root.glob(".venv/lib/python3*/site-packages")
        (packages / "__editable__.package.pth").write_text(f"{root}\n")
    if "git-lfs" in imported:
        (root / ".gitattributes").write_text("*.py filter=lfs\n")
        git(root, "config", "filter.lfs.clean", "no-such-git-lfs")
        git(root, "config", "filter.lfs.required", "true")
        os.utime(root / "scripts/train.py", (1, 1))  # git compares a file with another time by its content
    shell = {"PYTHONPATH": str(root)} if imported == "PYTHONPATH" else {}
    script = shlex.quote(f"{root}/scripts/train.py")
    python = ".venv/bin/python" if options else "python3"
    plain = ["sbatch", "--wait", "--output=plain.out", f"--wrap=srun {python} {script}"]
    assert lab_site.lab.exec(plain, cwd=str(root), env=shell).code == 0
    value, path, commit = (root / "plain.out").read_text().strip().split("|")
    assert (value, path) == ("None" if "git-lfs" in imported else "submitted", f"{root}/scripts/train.py")
    (root / "plain.out").unlink()

    arguments = [word.format(project=root) for word in command]
    answer = lab_site.submit(
        "--preflight", "off", "--snapshot", "--sbatch", "hold", *options, *arguments, **shell
    )
    (root / "package/__init__.py").write_text("VALUE = 'edited later'\n")
    shutil.rmtree(root / "scripts")
    lab_site.lab.exec(["scontrol", "release", answer["job_id"]])
    assert lab_site.run("wait", answer["run_id"]).code == 0
    copy = os.path.join(answer["run_dir"], "snapshot")
    assert lab_site.outputs(answer)[0].strip().split("|") == [value, f"{copy}/scripts/train.py", commit]
