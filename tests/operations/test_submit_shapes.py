"""One run in several shapes: what a shape says, and that the run begins in exactly one of them."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shape_races import races, tally
from clusterrun.coordinator.io.scheduler import Scheduler
from clusterrun.coordinator.slurm_job import SlurmJob
from clusterrun.model import shapes
from clusterrun.model.errors import BadInput
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.node.main import coordinate
from clusterrun.operations.run_files import formed
from clusterrun.runs.store import Store
from clusterrun.runtime.commands import CommandDone
from clusterrun.runtime.run_files import claim_shape
from clusterrun.script.plan import MachineFacts, plan
from tests.coordinator.tapes import ORDERS

SITE = MachineFacts(slurm=True, python="/usr/bin/python3")


def test_a_shape_is_nodes_and_gpus_and_what_else_differs() -> None:
    spec = JobSpec(("train.py",), "/", shapes="1-4xh100:8,partition=big 2,time=8h,time-min=1h", time=60)
    first, second = spec.shaped(0), spec.shaped(1)
    assert (first.nodes_asked, first.gpus_asked, first.partition, first.time) == ("1-4", "h100:8", "big", 60)
    assert (second.nodes_asked, second.gpus, second.time, second.time_min) == ("2", 0, 28800, 3600)
    assert spec.shape_words == ("1-4xh100:8,partition=big", "2,time=8h,time-min=1h")


@pytest.mark.parametrize(
    "text, message",
    [
        ("4x8", "1 of them; a choice has 2 to 9"),
        (" ".join(map(str, range(1, 11))), "10 of them"),
        ("4x8 4x8", "is given twice"),
        ("4x8 2y8", "not a number of nodes"),
        ("4x8 0x8", "nodes must be at least 1"),
        ("4x8 -1x8", "nodes must be at least 1"),
        ("4x8 2x", "not a number of GPUs"),
        (
            "4x8 2x8,colour=red",
            "'colour=red' is not one of ranks-per-node, cpus-per-rank, mem, time, time-min",
        ),
        ("4x8 2x8,time=", "'time=' is not one of"),
        ("4x8 2x8,time=soon", "'soon' is not a duration"),
        ("4x8 2,ranks-per-node=many", "ranks-per-node 'many' is not a whole number"),
    ],
)
def test_what_is_no_choice_of_shapes_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        shapes.read(text)
    assert message in refused.value.seen


def test_the_job_of_a_shape_is_told_by_its_comment_and_begins_as_its_own_folder() -> None:
    spec = JobSpec(("train.py",), "/", shapes="4 2,time=8h", name="train")
    planned = plan(spec.shaped(1), "r", "t0ken", "/runs/r", SITE, 1)
    assert planned.argv[-1] == "/runs/r/shapes/1/script.sh"
    assert planned.script.rstrip().endswith("agent.pyz coordinate /runs/r/shapes/1")
    assert "--comment=clusterrun:r:t0ken shape=1" in planned.script
    assert (planned.orders.shape, planned.orders.nodes, planned.orders.launch[-1]) == (1, 2, "/runs/r")
    for site in (
        MachineFacts(slurm=False, python="/p"),
        MachineFacts(slurm=True, python="/p", allocation="7"),
    ):
        with pytest.raises(BadInput, match="--shapes is for Slurm's queue"):
            plan(spec.shaped(0), "r", "t", "/runs/r", site)


def claims(folder: str, number: int) -> tuple[bool, ...]:
    """What each of many runs says to one of its shapes."""
    runs = [RunPaths(f"{folder}/{run}") for run in range(100)]
    return tuple(claim_shape(paths, number) for paths in runs)


def test_of_processes_that_claim_at_the_same_time_one_has_the_run_and_keeps_it(tmp_path: Path) -> None:
    for run in range(100):
        (tmp_path / str(run)).mkdir()
    with ProcessPoolExecutor(3) as pool:
        answers = list(pool.map(partial(claims, str(tmp_path)), range(3)))
    assert [sum(answer[run] for answer in answers) for run in range(100)] == [1] * 100
    assert [claims(str(tmp_path), number) for number in range(3)] == answers


def test_the_job_that_comes_second_ends_well_and_starts_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path))
    run = "20260102-030405-k3f9-train"
    store.claim(run)
    paths = store.paths(run)
    assert store.shape(run) is None
    assert claim_shape(paths, 0) and store.shape(run) == 0
    assert coordinate(paths.shape(1).run_dir) == 0
    assert "began in another of its shapes" in capfd.readouterr().err
    assert not os.path.exists(paths.attempts)


def test_the_run_that_has_begun_cancels_the_jobs_of_its_other_shapes_alone() -> None:
    rows = ("7|clusterrun:r:t shape=1", "8|clusterrun:r:t shape=1", "9|clusterrun:r:t shape=0 for paper")
    others = ("10|clusterrun:other:t shape=0", "11|", "12|clusterrun:r:t", "13|clusterrun:rr:t shape=0")
    commands: list[tuple[str, ...]] = []

    class Commands:
        def run(self, argv: tuple[str, ...], seconds: float, on_done: object) -> None:
            commands.append(argv)
            assert callable(on_done)
            on_done(CommandDone(0, (*rows, *others), ""))

    arguments: tuple[Any, ...] = (Commands(), SlurmJob("7", 0, 0.0), ORDERS, None, print, print)
    Scheduler(*arguments).drop_shapes(1)
    assert commands[1:] == [("scancel", "9")]


def test_a_run_begins_once_however_its_jobs_start_and_the_controller_stops(tmp_path: Path) -> None:
    counts = tally(races(30, 1, str(tmp_path)) + races(10, 2, str(tmp_path), shapes=3))
    assert (counts["doubled"], counts["lost"], counts["jobs left"]) == (0, 0, 0)
    assert (
        counts["losers cancelled"]
        and counts["losers that ended by themselves"]
        and counts["controller stops"]
    )


def test_a_claim_that_is_none_is_found_by_the_same_races(tmp_path: Path) -> None:
    assert tally(races(12, 1, str(tmp_path), claim=lambda paths, shape: True))["doubled"]
    assert tally(races(12, 1, str(tmp_path), claim=lambda paths, shape: False))["lost"]


def test_what_a_run_has_is_that_of_the_shape_it_began_in(tmp_path: Path) -> None:

    spec = JobSpec(("train.py",), "/", shapes="4x8 2x4,time=8h")
    sizes = [
        (formed_spec.nodes, formed_spec.gpus) for formed_spec in (formed(spec, None), formed(spec, None, 1))
    ]
    assert sizes == [(4, 8), (2, 4)]
