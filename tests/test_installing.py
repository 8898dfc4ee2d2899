"""The bundle for machines without a network is made, and installs into a fresh place that trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from clusterrun.model.contract import VERSION
from tests.test_wheel import LEFT_BEHIND, ROOT

pytestmark = pytest.mark.slow
OWN = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the bundle for this Python and unpack it."""
    place = tmp_path_factory.mktemp("bundle")
    shutil.copytree(ROOT, place / "checkout", ignore=LEFT_BEHIND, symlinks=True)
    script = place / "checkout" / "packaging" / "bundle.sh"
    arguments = ["sh", str(script), sys.executable, str(place / "dist"), OWN]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode and "No matching distribution" in result.stderr:
        pytest.skip("no package index answers: the wheels cannot be had")
    assert result.returncode == 0, result.stderr
    with tarfile.open(place / "dist" / f"clusterrun-{VERSION}-bundle.tar.gz") as archive:
        archive.extractall(place)
    return place / f"clusterrun-{VERSION}-bundle"


def test_the_bundle_has_no_torch(bundle: Path) -> None:
    names = {path.name.split("-")[0] for path in (bundle / "wheels").iterdir()}
    assert {"clusterrun", "click", "jinja2", "submitit", "pip", "tomli"} <= names
    assert not {"torch", "numpy"} & names


def test_it_installs_without_a_network_and_trains(bundle: Path, tmp_path: Path) -> None:
    alone = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    alone |= {"PIP_INDEX_URL": "http://127.0.0.1:9", "PYTHON": sys.executable}
    place = tmp_path / "a place"

    def run(*arguments: str) -> str:
        result = subprocess.run(
            arguments, env=alone, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert run("sh", str(bundle / "install.sh"), str(place)) == f"installed: {place}/bin/clusterrun\n"
    program = str(place / "bin/clusterrun")
    assert run(program, "--version") == f"clusterrun, version {VERSION}\n"
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    out = run(program, "submit", "--cluster", "local", "--ranks-per-node", "2", "-f", "train.py")
    assert sorted(out.splitlines()) == ["local-0 r0 | rank 0", "local-0 r1 | rank 1"]
    assert run(program, "help", "diagnose").startswith("# My job hangs, or has failed\n")


def test_the_installer_prints_its_needs(bundle: Path, tmp_path: Path) -> None:
    result = subprocess.run(["sh", str(bundle / "install.sh")], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr.startswith("usage: ")) == (2, True)
    environment = {**os.environ, "PYTHON": "/no/python"}
    arguments = ["sh", str(bundle / "install.sh"), str(tmp_path / "x")]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 2
    assert "/no/python is older than 3.9, or is not there" in result.stderr
