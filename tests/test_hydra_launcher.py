"""Our launcher under hydra's own tests of launchers, on this machine; how a job's failure is seen.

Each of these tests starts processes. A usual run takes some of hydra's; `make test-hydra` takes all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hydra", reason="hydra-core is not installed: pip install 'clusterrun[hydra]'")

from hydra.test_utils import launcher_common_tests
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)

HERE = ["hydra.launcher.cluster=local", "hydra.launcher.preflight=off"]
ENOUGH = ("test_sweep_2_jobs", "test_sweep_1_job_strict_and_bad_key", "test_not_sweeping_hydra_overrides")
APP = """import os, sys
import hydra
from beside import said

@hydra.main(version_base=None, config_path=None, config_name=None)
def app(config):
    if config.n == 2 and os.environ["RANK"] == "1":
        raise ValueError("too large")
    print(said(os.environ["RANK"]))

app()
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give hydra's suites the launcher's name and options for all their runs."""
    names = metafunc.fixturenames
    if "launcher_name" in names:
        is_batched = metafunc.cls is TestHydrasBatchedSweeperSuite
        overrides = [*HERE, "hydra.sweeper.max_batch_size=2"] if is_batched else [*HERE]
        metafunc.parametrize(("launcher_name", "overrides"), [("clusterrun", overrides)], ids=[""])
    if "task_launcher_cfg" in names:
        flags = ["-m", "hydra/launcher=clusterrun", *HERE]
        metafunc.parametrize(("task_launcher_cfg", "extra_flags"), [({}, flags)], ids=[""])


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home for every test."""
    ours = request.cls is None
    if not (ours or request.node.originalname in ENOUGH or os.environ.get("CLUSTERRUN_TEST_HYDRA") == "all"):
        pytest.skip("make test-hydra runs all of hydra's tests")
    monkeypatch.setenv("CLUSTERRUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class TestHydrasLauncherSuite(LauncherTestSuite):
    """Jobs in this process's own tree."""


class TestHydrasBatchedSweeperSuite(BatchedSweeperTestSuite):
    """A sweeper that gives the launcher a few jobs at a time."""


class TestHydrasIntegrationSuite(IntegrationTestSuite):
    """Applications of their own."""


def test_every_suite_of_hydra_is_listed() -> None:
    suites = {name for name in vars(launcher_common_tests) if name.endswith("TestSuite")}
    classes = (TestHydrasLauncherSuite, TestHydrasBatchedSweeperSuite, TestHydrasIntegrationSuite)
    assert {kind.__bases__[0].__name__ for kind in classes} == suites


def test_a_failed_job_is_a_failed_run_and_the_others_return_results(home: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "app.py").write_text(APP)
    (tmp_path / "app" / "beside.py").write_text("def said(rank):\n    return 'beside ' + rank\n")
    arguments = [
        "app/app.py",
        "-m",
        "hydra/launcher=clusterrun",
        *HERE,
        "hydra.launcher.ranks_per_node=2",
        "+n=1,2",
    ]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments, *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    result = run()
    assert result.returncode == 1, result.stdout + result.stderr
    assert "ValueError: too large" in result.stderr and "+n=2" in result.stderr
    records = {path.name: path for path in (home / "runs").iterdir()}
    assert [name.rpartition("-")[2] for name in sorted(records)] == ["app.0", "app.1"]
    first, second = (records[name] for name in sorted(records))
    ended = [sys.executable, "-m", "clusterrun", "wait", first.name, second.name]  # its result comes before
    assert subprocess.run(ended, capture_output=True, timeout=120, check=False).returncode == 1
    states = [json.loads((path / "state.json").read_text())["state"] for path in (first, second)]
    assert states == ["COMPLETED", "FAILED"]
    assert f"clusterrun diagnose {second.name}" in result.stdout
    out = [(first / "attempts/000" / f"0000{rank}.out").read_text() for rank in (0, 1)]
    assert ["beside 0" in out[0], "beside 1" in out[1]] == [True, True]
    bad = run("hydra.launcher.nods=2")
    assert bad.returncode == 1 and "nods" in bad.stderr and len(list((home / "runs").iterdir())) == 2
