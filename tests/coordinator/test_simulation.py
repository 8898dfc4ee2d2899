"""The machines in simulated worlds: faults first, then all is healed, and oracles look from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulator.mutants import MUTANTS, build
from benchmarks.simulator.world import World

ROOT = Path(__file__).resolve().parents[2]
EASY = (
    "ranks start everywhere as node 0",
    "a restart does not wait for all nodes",
    "no grace at all",
    "a second TERM shortens the grace",
    "the agent alone enforces the lease",
    "consequences are reported as failures",
    "ranks that vanish are not missed",
    "a takeover does not wait",
    "a 0 after a TERM is success",
    "the port is released when ranks start",
    "nothing is swept after the last rank",
    "leftover processes are killed at once",
    "the same step counts as progress",
    "the same error twice is restarted",
    "causes are all the same",
)
"""Found within 600 seeds; all of them are in ``benchmarks/bench_simulator.py``."""


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_law_is_broken_in_any_world(first: int) -> None:
    broken = {seed: result for seed in range(first, first + 100) if (result := World(seed).run().violations)}
    assert broken == {}


FOUND = (
    318846,
    328353,
    329652,
    330239,
    2005126,
    25224,
    28138,
    501195,
    501972,
    505896,
    3005248,
    3009279,
    5042275,
)
"""Places changed after a check that came to nothing; spares, or the run, lost to the launcher's own end; a
start refused on a node that was just woken. The last seven: what the oracles took for known, and was not."""


@pytest.mark.parametrize("seed", FOUND)
def test_no_law_is_broken_in_a_recorded_world(seed: int) -> None:
    assert World(seed).run().violations == []


def test_the_same_seed_has_the_same_history_whatever_the_hash_seed() -> None:
    program = (
        "from benchmarks.simulator.world import World\n"
        "for seed in range(40):\n"
        "    world = World(seed); world.run(); print(world.clock.fingerprint())\n"
    )
    prints = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
        )
        prints.append(result.stdout.split())
    assert len(prints[0]) == len(set(prints[0])) == 40
    assert prints[0] == prints[1]


@pytest.mark.parametrize("name", EASY)
def test_a_planted_bug_is_found(name: str) -> None:
    machines = build(next(mutant for mutant in MUTANTS if mutant.name == name))
    assert any(World(seed, machines).run().violations for seed in range(600))


def test_every_planted_bug_still_has_its_place_in_the_source() -> None:
    for mutant in MUTANTS:
        build(mutant)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 80
