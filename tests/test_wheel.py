"""The wheel and the source archive contain the files of the folders, and no others."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {
    "clusterrun": "clusterrun",
    "docs": "clusterrun/docs",
    "hydra_plugins": "hydra_plugins",
    "jobs": "clusterrun/jobs",
    "templates": "clusterrun/templates",
}
"""Folder in the checkout → folder in the wheel."""
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel and a source archive from a copy, so that the checkout stays unchanged."""
    pytest.importorskip("build")
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, place / "checkout", ignore=LEFT_BEHIND, symlinks=True)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(place),
        str(place / "checkout"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return place


def files(folder: Path) -> set[str]:
    """Return every file below the folder by its name in the wheel."""
    remaining = {"__pycache__", "pictures"}  # pictures are for the site alone
    result = (path for path in folder.rglob("*") if path.is_file() and not remaining & set(path.parts))
    return {path.relative_to(folder).as_posix() for path in result}


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_the_wheel_holds_the_package_the_documents_the_templates_and_the_jobs_and_nothing_else(built) -> None:
    expected = {f"{inside}/{name}" for folder, inside in SHIPPED.items() for name in files(ROOT / folder)}
    names = zipfile.ZipFile(only(built, "*.whl")).namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_the_wheel_carries_the_licence_and_the_version_that_the_contract_names(built) -> None:
    source = ast.parse((ROOT / "clusterrun/model/contract.py").read_text(encoding="utf-8"))
    (version,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERSION"
    )
    wheel = only(built, "*.whl")
    assert wheel.name == f"clusterrun-{version}-py3-none-any.whl"
    assert any(name.endswith("LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_the_source_archive_holds_all_that_is_tracked(built) -> None:
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    tracked = subprocess.run(git, capture_output=True, text=True, timeout=60, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout: what is tracked is not known")
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked.stdout.split("\0") if name and (ROOT / name).exists()} - held == set()


def test_templates_and_jobs_are_read_from_the_wheel_alone(built, tmp_path) -> None:
    """The wheel is laid out in a folder, as pip would, and asked from elsewhere."""
    if not (ROOT / "clusterrun/shipped.py").exists():
        pytest.skip("clusterrun/shipped.py is not in this build")
    zipfile.ZipFile(only(built, "*.whl")).extractall(tmp_path)
    code = "from clusterrun.shipped import folder as f; print(f('docs'), f('templates'), f('jobs'))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True)
    expected = [str(tmp_path / "clusterrun" / name) for name in ("docs", "templates", "jobs")]
    assert run.stdout.split() == expected
