"""Faults of links and nodes on a real Slurm: the check names exactly those, and blames nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.preflight_cases import CASES, Case, play
from tests.lab.test_slurm_runs import Site, site
from tests.lab_fixture import MakeLab

pytestmark = pytest.mark.lab

HERE = (
    "healthy, 5 nodes",
    "node dead before the start",
    "node dies during the check",
    "one-way cut",
    "one-way cut, to the coordinator's node",
    "connections that a node begins are dropped",
    "a node loses what it sends",
    "slow network of a node",
    "slow link of a pair",
    "node frozen during the check",
    "own name is 127.0.1.1",
    "2 nodes, one corrupts, a spare",
    "three of twelve",
)
"""The others are run by hand: python -m tests.benchmarks.bench_preflight_faults."""

BUDGET = "3m"
"""More than it takes: a machine that is busy with other things is no fault of the nodes."""


@pytest.fixture(scope="module")
def twelve(make_lab: MakeLab) -> Iterator[Lab]:
    lab = make_lab(nodes=12, gpus=0)
    yield lab
    lab.down()


@pytest.fixture
def on_slurm(twelve: Lab, tmp_path: Path) -> Iterator[Site]:
    yield site(twelve, tmp_path)
    twelve.heal()
    assert twelve.wait_idle(120.0), twelve.node_states()


@pytest.mark.parametrize("case", [case for case in CASES if case.name in HERE], ids=lambda case: case.name)
def test_the_fault_is_named_exactly_and_nobody_else_is_blamed(on_slurm: Site, case: Case) -> None:
    found = play(case, on_slurm, BUDGET)
    assert case.exact(found), (found.status["reason"], found.said)
