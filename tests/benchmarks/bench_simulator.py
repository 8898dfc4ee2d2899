"""The simulator: seeds an hour on one core, and how many of the planted bugs it finds."""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.agent.simulator.mutants import MUTANTS, build
from tests.agent.simulator.world import World

SEEDS = 5_000
GOAL_SEEDS = 20_000
SEEDS_FOR_A_MUTANT = 15_000
GOAL_FOUND = 0.95


def seeds(count: int) -> bool:
    """Run so many worlds of the machines as they are; whether no law is broken and the goal is met."""
    began = time.process_time()
    broken = [seed for seed in range(count) if World(seed).run().violations]
    an_hour = count / (time.process_time() - began) * 3600
    print(
        f"{count} seeds: {an_hour:,.0f} an hour on one core (goal {GOAL_SEEDS:,}), broken: {broken or 'none'}"
    )
    return not broken and an_hour >= GOAL_SEEDS


def first_found(machines: tuple[Any, Any]) -> int | None:
    """The first seed that notices the bug in ``machines``."""
    return next((seed for seed in range(SEEDS_FOR_A_MUTANT) if World(seed, machines).run().violations), None)


def mutants() -> bool:
    """Whether enough of the planted bugs are found."""
    found = 0
    for mutant in MUTANTS:
        seed = first_found(build(mutant))
        found += seed is not None
        print(f"  {'MISSED' if seed is None else f'seed {seed}':>11}  {mutant.name}", flush=True)
    share = found / len(MUTANTS)
    print(f"{found} of {len(MUTANTS)} planted bugs found: {share:.0%} (goal {GOAL_FOUND:.0%})")
    return share >= GOAL_FOUND


def main(arguments: list[str]) -> int:
    """``seeds [N]`` or ``mutants`` or both."""
    count = int(arguments[1]) if len(arguments) > 1 else SEEDS
    passed = True
    if arguments[:1] != ["mutants"]:
        passed = seeds(count)
    if arguments[:1] != ["seeds"]:
        passed = mutants() and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
