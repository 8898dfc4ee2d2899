"""Our executor under submitit's own tests of its local executor and of its plug-ins, on this machine.

Each of these tests starts runs. A usual test run takes some; `make test-submitit` takes all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'clusterrun[submitit]'")

from submitit import AutoExecutor
from submitit.core.test_plugins import *  # noqa: F403 (whichever tests it has)
from submitit.core.test_plugins import _plugin_creator
from submitit.local import local, test_local
from submitit.local.test_local import *  # noqa: F403

from clusterrun.executor import ClusterrunExecutor

__all__ = ["_plugin_creator"]
ENOUGH = ("test_env", "test_executors", "test_load_submission", "test_setup")
PROCESS = "it looks at the process of submitit's LocalJob, which a run has not"
REQUEUED = "a time limit in seconds that queues a call again: a run on this machine is not queued again"
ALONE = "it expects that no other plug-in is installed"
NOT_OURS = {
    "test_local_job": PROCESS,
    "test_killed": PROCESS,
    "test_cancel": "INTERRUPTED is submitit's word for want of a better one; here it is CANCELLED",
    "test_requeuing": REQUEUED,
    "test_custom_checkpoint": REQUEUED,
    "test_find_good_plugin": ALONE,
    "test_skip_bad_plugin": ALONE,
}
"""Tests that fail, and why they do not apply; docs/python.md sums them up."""


class OnThisMachine(ClusterrunExecutor):
    """Replaces the local executor in submitit's tests."""

    def __init__(self, folder: str | Path, **more: Any) -> None:
        super().__init__(folder, cluster="local", preflight="off", **more)


class ByOneWord(AutoExecutor):
    """Replaces the executor that takes its plug-in by name in submitit's tests."""

    def __init__(self, folder: str | Path, cluster: str) -> None:
        super().__init__(folder, cluster="clusterrun")
        super().update_parameters(clusterrun_cluster="local", clusterrun_preflight="off")

    def update_parameters(self, **parameters: Any) -> None:
        super().update_parameters(
            **{name.replace("local_", "clusterrun_"): value for name, value in parameters.items()}
        )


@pytest.fixture(autouse=True)
def ours(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = request.node.originalname
    if name not in ENOUGH and os.environ.get("CLUSTERRUN_TEST_SUBMITIT") != "all":
        pytest.skip("make test-submitit runs all of submitit's tests")
    if name in NOT_OURS:
        request.applymarker(pytest.mark.xfail(reason=NOT_OURS[name], strict=True))
    monkeypatch.setenv("CLUSTERRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(local, "LocalExecutor", OnThisMachine)
    monkeypatch.setattr(local, "LocalJob", OnThisMachine.job_class)
    monkeypatch.setattr(test_local, "AutoExecutor", ByOneWord)


@pytest.fixture(params=["a_0", "a 0", 'a"=0"', "a'; echo foo", r"a\=0", r"a\=", "a\n0"])
def weird_tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path as submitit's own fixture of this name does."""
    return tmp_path / str(request.param)
