"""Runs with unfit nodes on a real Slurm: a swap, a requeue, or an end with a remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.preflight_cases import report, state, wait_for
from tests.lab.test_slurm_runs import Site, site
from tests.lab_fixture import MakeLab

pytestmark = pytest.mark.lab

UNFIT = ("--env", "CLUSTERRUN_TEST_CORRUPT_NODE=n0002")
"""This node of the lab computes wrong sums in the check."""
BUDGET = ("--preflight", "full", "--preflight-budget", "3m")


@pytest.fixture(scope="module")
def four(make_lab: MakeLab) -> Iterator[Lab]:
    lab = make_lab(nodes=4, gpus=0)
    yield lab
    lab.down()


@pytest.fixture
def on_slurm(four: Lab, tmp_path: Path) -> Site:
    return site(four, tmp_path)


def nodes_of_ranks(lab_site: Site, answer: dict[str, Any], attempt: int = 0) -> list[str]:
    """Return the node of each rank, as the ranks printed it."""
    message = lab_site.outputs(answer, attempt)
    return [json.loads(message[rank])["environ"]["CLUSTERRUN_NODE_NAME"] for rank in sorted(message)]


def test_a_spare_replaces_an_unfit_node_and_the_run_has_the_requested_size(on_slurm: Site) -> None:
    size = ("--nodes", "3", "--spares", "1")
    result = on_slurm.run("submit", "--json", "--wait", *BUDGET, *size, *UNFIT, "tell.py", limit=240)
    assert result.code == 0, result.err
    assert "pre-flight WARN: n0002 is unfit; 3 of 4 nodes are fit" in result.err
    answer = json.loads(result.out)
    assert nodes_of_ranks(on_slurm, answer) == ["n0001", "n0004", "n0003"]
    assert report(answer)["excluded"] == ["n0002"]
    listed = json.loads(on_slurm.run("nodes", "--json").out)
    assert [(node["name"], node["fails"]) for node in listed["nodes"]] == [("n0002", 1)]
    avoided = on_slurm.run("submit", "--dry-run", "--avoid-bad", "--nodes", "3", "tell.py")
    assert ("--exclude=n0002\n" in avoided.out, "excludes n0002: unfit" in avoided.err) == (True, True)
    needed = on_slurm.run("submit", "--dry-run", "--avoid-bad", "--nodes", "4", "tell.py")
    assert ("--exclude" in needed.out, "n0002 would be excluded too" in needed.err) == (False, True)


def test_a_node_that_fails_the_users_own_check_is_swapped_for_a_spare(on_slurm: Site) -> None:
    """srun gives the command the same exit code and words on the same node."""
    command = "case $(hostname) in n0002) echo scratch is not mounted; exit 9;; esac"
    plain = on_slurm.lab.exec(["srun", "--nodelist=n0002", "sh", "-c", command])
    assert (plain.code, plain.out) == (9, "scratch is not mounted\n")
    size = ("--nodes", "1", "--spares", "1", "--nodelist", "n[0002-0003]")
    result = on_slurm.run(
        "submit", "--json", "--wait", *BUDGET, *size, "--check-command", command, "tell.py", limit=240
    )
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert nodes_of_ranks(on_slurm, answer) == ["n0003"]
    findings = report(answer)["nodes"]["n0002"]["findings"]
    finding = next(finding for finding in findings if finding["check"] == "check-command")
    assert finding["verdict"] == "fail"
    assert "scratch is not mounted (exit code 9 of: " in finding["said"]
    on_slurm.run("nodes", "--forget", "n0002")


def test_a_run_without_a_spare_ends_with_the_findings_and_a_remedy(on_slurm: Site) -> None:
    result = on_slurm.run("submit", "--json", "--wait", *BUDGET, "--nodes", "3", *UNFIT, "tell.py", limit=240)
    assert result.code == 3, result.err
    assert "FAIL: n0002 is unfit; 2 of 3 nodes are fit" in result.err
    assert "again   clusterrun submit --exclude n0002 …  (or --spares 1)" in result.err
    run_id = json.loads(result.out)["run_id"]
    status = on_slurm.status(run_id)
    assert (status["state"], status["exit_code"], status["reason"].split(":")[0]) == (
        "FAILED",
        3,
        "pre-flight",
    )
    assert (on_slurm.run("wait", run_id).code, on_slurm.run("report", run_id).code) == (3, 0)


def test_a_run_queues_itself_again_without_its_unfit_nodes_and_trains(on_slurm: Site) -> None:
    size = ("--nodes", "3", "--on-unfit", "resubmit")
    result = on_slurm.run("submit", "--json", "--wait", *BUDGET, *size, *UNFIT, "tell.py", limit=300)
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert nodes_of_ranks(on_slurm, answer, 1) == ["n0001", "n0003", "n0004"]
    status = on_slurm.status(answer["run_id"])
    assert (status["state"], status["attempt"], status["job_id"] != answer["job_id"]) == (
        "COMPLETED",
        1,
        True,
    )
    assert [report(answer, attempt)["verdict"] for attempt in (0, 1)] == ["fail", "pass"]
    assert on_slurm.status(answer["job_id"])["run_id"] == on_slurm.status(status["job_id"])["run_id"]


def test_a_run_that_waits_to_start_again_is_cancelled_like_any_other(on_slurm: Site) -> None:
    holder = on_slurm.submit("--preflight", "off", "--nodelist", "n0004", "stay.py")
    size = ("--nodes", "3", "--on-unfit", "resubmit")
    answer = on_slurm.submit(*BUDGET, *size, *UNFIT, "tell.py")
    wait_for(lambda: state(answer).get("state") == "PENDING", 200.0, "its next job")
    assert on_slurm.status(answer["run_id"])["state"] == "PENDING"
    assert on_slurm.run("cancel", answer["run_id"]).code == 0
    assert on_slurm.status(answer["run_id"])["state"] == "CANCELLED"
    on_slurm.run("cancel", holder["run_id"])
    wait_for(lambda: on_slurm.lab.exec(["squeue", "--noheader"]).out == "", 60.0, "an empty queue")


def test_check_exits_by_its_verdict_and_starts_no_rank(on_slurm: Site) -> None:
    fine = on_slurm.run(
        "check", "--nodes", "2", "--level", "quick", "--preflight-budget", "3m", "--json", limit=240
    )
    assert fine.code == 0, fine.err
    document = json.loads(fine.out)
    assert (document["verdict"], sorted(document["nodes"]), document["excluded"]) == (
        "pass",
        ["n0001", "n0002"],
        [],
    )
    html = str(on_slurm.project / "report.html")
    ill = on_slurm.run("check", "--nodes", "3", "--preflight-budget", "3m", "--html", html, *UNFIT, limit=240)
    assert (ill.code, ill.out.startswith("FAIL: n0002 is unfit; 2 of 3 nodes are fit\n")) == (3, True)
    assert "n0002" in Path(html).read_text()
    assert json.loads(on_slurm.run("report", "--json").out)["excluded"] == ["n0002"]
