"""A home with two real clusters. Runs of each are unknown to the other and continue there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.test_slurm_runs import Site, site, until
from tests.lab_fixture import MakeLab

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def other(make_lab: MakeLab) -> Lab:
    """Make a second cluster of one node."""
    return make_lab(nodes=1, gpus=0)


def state_of(lab_site: Site, run_id: str) -> tuple[str, str]:
    status = lab_site.status(run_id)
    return status["state"], status["reason"]


def test_a_run_is_not_ended_by_another_cluster_and_can_be_cancelled_from_both(
    lab: Lab, other: Lab, tmp_path: Path
) -> None:
    on_a = site(lab, tmp_path)
    on_b = Site(other, on_a.home, on_a.project)
    live = on_a.submit("--nodes", "1", "stay.py")
    queued = on_a.submit("--nodes", "1", "--sbatch", "begin=now+1hour", "stay.py")
    of_b = on_b.submit("--nodes", "1", "stay.py")  # its job has the number of one over there
    assert on_b.status(of_b["job_id"])["run_id"] == of_b["run_id"]
    until(lambda: state_of(on_a, live["run_id"])[0] == "RUNNING")
    assert state_of(on_b, live["run_id"])[0] == "RUNNING"
    state, reason = state_of(on_b, queued["run_id"])
    assert (state, f"on the cluster {lab.state.spec.cluster}" in reason) == ("UNKNOWN", True)
    on_b.run("status", "--state", "ended")
    assert not list(Path(on_a.home, "runs").glob("*/ended.json"))
    assert [state_of(on_a, entry["run_id"])[0] for entry in (live, queued)] == ["RUNNING", "PENDING"]

    refused = on_b.run("cancel", queued["run_id"])
    assert refused.code == 4 and "its jobs are on the cluster" in refused.err
    assert on_b.run("cancel", live["run_id"]).code == 0  # its coordinator hears the word
    assert state_of(on_a, live["run_id"])[0] == "CANCELLED"
    for local, run in ((on_a, queued), (on_b, of_b)):
        assert local.run("cancel", run["run_id"]).code == 0
        assert json.loads(local.run("status", "--json", run["run_id"]).out)["runs"][0]["state"] == "CANCELLED"
