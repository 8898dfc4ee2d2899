"""Runs over many jobs in simulated worlds: time limits, preemptions, cancels, and a scheduler of moods."""

from __future__ import annotations

import pytest

from benchmarks.simulator.job_bugs import JOB_BUGS
from benchmarks.simulator.mutants import build
from benchmarks.simulator.world import World


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_law_is_broken_in_any_world_with_jobs(first: int) -> None:
    worlds = ((seed, World(seed, jobs=True).run()) for seed in range(first, first + 100))
    assert {seed: watch.violations for seed, watch in worlds if watch.violations} == {}


def test_a_launcher_that_ends_while_the_next_attempt_is_claimed_ends_nothing_else() -> None:
    assert World(5029891, jobs=True).run().violations == []


def test_runs_end_in_one_job_in_many_jobs_and_with_every_reason() -> None:
    worlds = [World(seed, jobs=True) for seed in range(100)]
    for world in worlds:
        world.run()
    ends = {world.state_file.state.value for world in worlds if world.state_file is not None}
    assert ends >= {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"}
    jobs = {len(world.coordinators) for world in worlds}
    assert jobs >= {1, 2, 3}


@pytest.mark.parametrize("name", [bug.name for bug in JOB_BUGS])
def test_a_bug_that_is_planted_in_the_end_of_a_job_is_found(name: str) -> None:
    machines = build(next(bug for bug in JOB_BUGS if bug.name == name))
    assert any(World(seed, machines, jobs=True).run().violations for seed in range(600))
