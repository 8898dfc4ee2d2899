"""clusterrun on the GPUs of a lab: the check and its faults, the self-test, jobs, diagnosis, restarts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.lab.lab import Lab
from tests.cuda_standin.conftest import FOLDER
from tests.lab.preflight_cases import blamed
from tests.lab.test_slurm_runs import Site, until
from tests.lab_fixture import MakeLab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# The nodes share the processors of this machine, so a check takes longer than on a cluster.
BUDGET = ("--preflight-budget", "280")
LIMIT = 700.0


@pytest.fixture(scope="module")
def gpu_lab(make_lab: MakeLab) -> Lab:
    return make_lab(nodes=3, gpus=2)


@pytest.fixture
def on_gpus(gpu_lab: Lab, tmp_path: Path) -> Iterator[Site]:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(FOLDER / "hang.py", project)
    yield Site(gpu_lab, tmp_path / "home", project)
    gpu_lab.heal()


def check(site: Site, *options: str, **variables: str) -> dict[str, Any]:
    result = site.run("check", *options, *BUDGET, "--json", limit=LIMIT, **variables)
    assert result.code in (0, 3), result.err
    report: dict[str, Any] = json.loads(result.out)
    return report


def diagnosis(site: Site, run_id: str) -> dict[str, Any]:
    result = site.run("diagnose", "--json", run_id)
    assert result.code == 0, result.err
    answer: dict[str, Any] = json.loads(result.out)
    return answer


def test_sound_nodes_pass_the_full_check_by_nccl(on_gpus: Site) -> None:
    report = check(on_gpus, "--nodes", "2", "--gpus", "2")
    assert (report["backend"], report["level"]) == ("nccl", "full")
    # Another program may take the processors while one rail is measured.
    assert report["verdict"] in ("pass", "warn"), report


# The check's report of a fault of n0003; '': it only reports that others waited for the node.
FAULTS = {
    "wrong-sum": "sum",
    "init-error": "out of memory",
    "hang-init": "",
    "never-arrives": "",
    "hang": "",
    "remote-error": "remote process",
    "async-error": "internal error",
    "gpu-busy": "busy or unavailable",
    "ecc": "ECC",
    "illegal-address": "illegal memory access",
    "fabric-not-ready": "",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_its_node_or_is_undetermined(on_gpus: Site, fault: str) -> None:
    report = check(on_gpus, "--nodes", "3", "--gpus", "1", CUDA_STANDIN_FAULTS=f"{fault}@n0003")
    names = blamed(report).nodes
    findings = [entry for node in report["nodes"].values() for entry in node["findings"]]
    messages = [entry["said"] for entry in findings if entry["verdict"] != "pass"]
    assert names == {"n0003"} or (not names and report["verdict"] == "undetermined"), report
    assert any(FAULTS[fault] in text for text in messages), report


@pytest.mark.parametrize("fault", ["slow-driver=8", "slow-kernels=33"])
def test_slow_sound_nodes_are_not_blamed(on_gpus: Site, fault: str) -> None:
    report = check(on_gpus, "--nodes", "2", "--gpus", "1", CUDA_STANDIN_FAULTS=fault)
    assert blamed(report).nodes == set(), report
    assert report["verdict"] in ("pass", "warn", "undetermined"), report


def test_a_node_whose_collectives_begin_late_is_slow_or_undetermined(on_gpus: Site) -> None:
    report = check(on_gpus, "--nodes", "3", "--gpus", "1", CUDA_STANDIN_FAULTS="slow@n0003=0.3")
    unfit = {
        node
        for node, entry in report["nodes"].items()
        for finding in entry["findings"]
        if finding["check"] in ("bandwidth", "pair") and finding["verdict"] in ("warn", "fail")
    }
    assert unfit <= {"n0003"}, report
    assert unfit or report["verdict"] in ("warn", "undetermined"), report


def test_a_slow_gpu_is_named(on_gpus: Site) -> None:
    report = check(on_gpus, "--nodes", "3", "--gpus", "1", CUDA_STANDIN_FAULTS="slow-gpu@n0003=0.3")
    named = {
        (node, finding["check"])
        for node, entry in report["nodes"].items()
        for finding in entry["findings"]
        if finding["verdict"] in ("warn", "fail")
    }
    assert ("n0003", "product") in named, report


def test_the_selftest_passes(on_gpus: Site) -> None:
    file = on_gpus.project / "selftest.json"
    options = ("--selftest-gpu", "--nodes", "1", "--gpus", "2", "--selftest-file", str(file))
    result = on_gpus.run("check", *options, limit=LIMIT)
    assert result.code == 0, result.out + result.err
    assert json.loads(file.read_text())["check"]["backend"] == "nccl"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_job_of_the_examples_trains_on_gpus(on_gpus: Site, strategy: str) -> None:
    script = str(FOLDER.parents[1] / "jobs" / "train.py")
    run = on_gpus.submit("--nodes", "2", "--gpus", "1", script, "--strategy", strategy, "--steps", "10")
    result = on_gpus.run("wait", run["run_id"], limit=LIMIT)
    assert result.code == 0, on_gpus.outputs(run)
    assert "cuda" in on_gpus.outputs(run)[0]


@pytest.mark.parametrize(
    ("kind", "verdict", "ranks"), [("hang", "rank never arrived", [1]), ("sizes", "mismatch", [0, 1])]
)
def test_a_live_job_is_diagnosed(on_gpus: Site, kind: str, verdict: str, ranks: list[int]) -> None:
    run = on_gpus.submit("--nodes", "2", "--gpus", "1", "hang.py", kind, "600")
    seen: dict[str, Any] = {}

    def is_named() -> bool:
        seen.update(diagnosis(on_gpus, run["run_id"]))
        return seen["verdict"] == verdict

    try:
        until(is_named, LIMIT)
    finally:
        on_gpus.run("cancel", run["run_id"])
    assert [culprit["rank"] for culprit in seen["culprits"]] == ranks
    if kind == "hang":
        assert "hang.py" in seen["culprits"][0]["why"]
        assert "lose_itself" in seen["culprits"][0]["why"]


@pytest.mark.parametrize(
    ("kind", "verdict", "why"),
    [
        ("hang", "rank never arrived", "lose_itself"),
        ("kill", "crashed", "SIGKILL"),
        ("memory", "out of memory", "Tried to allocate 80.00 GiB"),
    ],
)
def test_an_ended_job_is_diagnosed(on_gpus: Site, kind: str, verdict: str, why: str) -> None:
    run = on_gpus.submit("--nodes", "1", "--gpus", "2", "--max-restarts", "0", "hang.py", kind, "20")
    assert on_gpus.run("wait", run["run_id"], limit=LIMIT).code != 0
    answer = diagnosis(on_gpus, run["run_id"])
    assert (answer["verdict"], [culprit["rank"] for culprit in answer["culprits"]]) == (verdict, [1])
    assert why in answer["culprits"][0]["why"]


def test_a_killed_rank_is_restarted_and_the_run_ends_well(on_gpus: Site) -> None:
    run = on_gpus.submit("--nodes", "1", "--gpus", "2", "--max-restarts", "1", "hang.py", "kill", "60")
    assert on_gpus.run("wait", run["run_id"], limit=LIMIT).code == 0
    assert on_gpus.outputs(run, attempt=1)[0].strip() == "on the way"
