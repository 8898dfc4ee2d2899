"""Live runs on a real cluster: both ends of a link that is cut are named; a rank that saves is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.test_slurm_runs import Site, site, until

pytestmark = pytest.mark.lab

TRAIN = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100_000):
    dist.all_reduce(torch.ones(1000))
    if step == 20:
        print("on the way", flush=True)
    time.sleep(0.02)
"""


def on_the_way(folder: Path) -> bool:
    """Return whether all three ranks train."""
    return [path.read_text() for path in folder.glob("attempts/000/*.out")] == ["on the way\n"] * 3


def diagnosed(lab_site: Site, run_id: str) -> dict[str, object]:
    result = lab_site.run("diagnose", "--json", run_id)
    assert result.code == 0, result.err
    actual: dict[str, object] = json.loads(result.out)
    return actual


def test_a_one_way_cut_during_training_is_named_by_its_ends(lab: Lab, tmp_path: Path) -> None:
    local = site(lab, tmp_path)
    (local.project / "train.py").write_text(TRAIN)
    options = ("--nodes", "3", "--ranks-per-node", "1", "--gpus", "0", "--nodelist", "n0001,n0002,n0003")
    run = local.submit(*options, "train.py")
    try:
        until(lambda: on_the_way(Path(run["run_dir"])), 120)
        lab.fault("cut", "n0002", to="n0003")
        result: dict[str, object] = {}

        def named() -> bool:
            result.update(diagnosed(local, run["run_id"]))
            return result["verdict"] == "link" and result["culprits"] != []

        until(named, 120)
    finally:
        lab.heal()
        local.run("cancel", run["run_id"])
    assert "the link between n0002 and n0003 is broken" in str(result["said"])
    ends = [(culprit["rank"], culprit["node"]) for culprit in result["culprits"]]  # type: ignore[attr-defined]
    assert set(ends) <= {(-1, "n0002"), (-1, "n0003")}


STEPS = """
import time
print("on the way", flush=True)
time.sleep(100_000)
"""


def test_a_cut_between_two_nodes_of_a_run_blames_neither_of_them(lab: Lab, tmp_path: Path) -> None:
    local = site(lab, tmp_path)
    (local.project / "train.py").write_text(STEPS)
    options = ("--nodes", "2", "--ranks-per-node", "1", "--gpus", "0", "--nodelist", "n0002,n0003")
    run = local.submit(*options, "train.py")
    outputs = Path(run["run_dir"])
    try:
        until(
            lambda: len([path for path in outputs.glob("attempts/000/*.out") if path.read_text()]) == 2, 120
        )
        lab.fault("cut", "n0002", to="n0003", both=True)
        assert local.run("wait", run["run_id"]).code == 1
    finally:
        lab.heal()
    result = diagnosed(local, run["run_id"])
    ends = [(culprit["rank"], culprit["node"]) for culprit in result["culprits"]]  # type: ignore[attr-defined]
    assert (result["verdict"], ends) == ("link", [(-1, "n0002"), (-1, "n0003")])


SAVES = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("on the way", flush=True)
def save():
    with open("checkpoint.bin", "wb", 0) as file:
        while not os.path.exists("saved"):
            file.write(b"x" * 200_000)
            time.sleep(0.05)
if dist.get_rank() == 0:
    save()
    time.sleep(100_000)
dist.barrier()
"""


def test_a_rank_that_saves_is_not_blamed_and_one_that_hangs_later_is(lab: Lab, tmp_path: Path) -> None:
    local = site(lab, tmp_path)
    (local.project / "train.py").write_text(SAVES)
    options = ("--nodes", "3", "--ranks-per-node", "1", "--gpus", "0", "--nodelist", "n0001,n0002,n0003")
    run = local.submit(*options, "train.py")
    verdicts: list[tuple[object, object]] = []

    def says(*expected: object) -> bool:
        result = diagnosed(local, run["run_id"])
        ranks = [culprit["rank"] for culprit in result["culprits"]]  # type: ignore[attr-defined]
        verdicts.append((result["verdict"], ranks))
        return verdicts[-1] == expected and (ranks != [] or "a file that grows" in str(result["said"]))

    try:
        until(lambda: on_the_way(Path(run["run_dir"])), 120)
        until(lambda: says("nothing wrong", []), 120)
        assert ("rank never arrived", [0]) not in verdicts
        (local.project / "saved").touch()
        until(lambda: says("rank never arrived", [0]), 120)
    finally:
        local.run("cancel", run["run_id"])
