"""The simulator: laws broken over many seeds of both kinds, seeds an hour, replays, planted bugs found."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.simulator.job_bugs import JOB_BUGS
from benchmarks.simulator.mutants import MUTANTS, build
from benchmarks.simulator.world import World

SEEDS = 5_000
GOAL_SEEDS = 20_000
JOBS_SHARE = 0.4
"""Of all seeds: worlds in which a scheduler starts and ends the jobs of the run."""
REPLAYED = 50
"""One seed in so many is run once more, and must have the same history."""
TOLD = 1_000
"""After so many seeds it is said how it goes."""
SEEDS_FOR_A_MUTANT = 15_000
GOAL_FOUND = 0.95

TWO_ALIVE = ("live at once", " lives on node ", " starts after ", " is stuck", "runs twice")
NO_END = ("never ends", "is left on node", "go on for ever", "nobody goes on")


class Count:
    """What was found so far, by kind of law."""

    def __init__(self) -> None:
        self.seeds = self.replayed = self.differ = 0
        self.seconds = 0.0
        self.broken: dict[str, list[str]] = {"two epochs alive": [], "no end": [], "other": []}

    def run(self, seed: int, jobs: bool) -> None:
        """One world; now and then once more, which is not counted as time of a seed."""
        began = time.process_time()
        world = World(seed, jobs=jobs)
        violations = world.run().violations
        self.seconds += time.process_time() - began
        self.seeds += 1
        for kind in {_kind(text.partition(": ")[2]) for text in violations}:
            self.broken[kind].append(f"{'jobs ' if jobs else ''}{seed}")
        if seed % REPLAYED == 0:
            again = World(seed, jobs=jobs)
            again.run()
            self.replayed += 1
            self.differ += world.clock.fingerprint() != again.clock.fingerprint()

    def told(self) -> str:
        """One line."""
        an_hour = self.seeds / self.seconds * 3600 if self.seconds else 0.0
        laws = ", ".join(f"{kind} {len(seeds)} {seeds or ''}".rstrip() for kind, seeds in self.broken.items())
        same = f"{self.replayed - self.differ} of {self.replayed} replayed with the same hash"
        return f"{self.seeds} seeds, {an_hour:,.0f} an hour (goal {GOAL_SEEDS:,}): {laws}; {same}"

    @property
    def passed(self) -> bool:
        """Nothing was broken, and the goal is met."""
        met = self.seconds == 0 or self.seeds / self.seconds * 3600 >= GOAL_SEEDS
        return met and not self.differ and not any(self.broken.values())


def _kind(text: str) -> str:
    if text.startswith(("rank ", "a rank ", "epochs ")) and any(words in text for words in TWO_ALIVE):
        return "two epochs alive"
    return "no end" if any(words in text for words in NO_END) else "other"


def seeds(count: int, first: int) -> bool:
    """Run so many worlds of the machines as they are, of both kinds in turn; whether all is well."""
    found = Count()
    numbers = {False: first, True: first}
    for _ in range(count):
        jobs = numbers[True] - first < JOBS_SHARE * found.seeds
        found.run(numbers[jobs], jobs)
        numbers[jobs] += 1
        if found.seeds % TOLD == 0:
            print(f"  {found.told()}", flush=True)
    print(f"{numbers[False] - first} single, {numbers[True] - first} over many jobs: {found.told()}")
    return found.passed


def first_found(machines: tuple[Any, Any]) -> str | None:
    """The first seed that notices the bug in ``machines``; every third one is of a run over many jobs."""
    for seed in range(SEEDS_FOR_A_MUTANT):
        if _noticed(machines, seed, jobs=False):
            return f"seed {seed}"
        if seed % 2 == 0 and _noticed(machines, seed // 2, jobs=True):
            return f"jobs {seed // 2}"
    return None


def _noticed(machines: tuple[Any, Any], seed: int, jobs: bool) -> bool:
    """A law is broken with the bug, and not without it."""
    broken = World(seed, machines, jobs=jobs).run().violations
    return bool(broken) and not World(seed, jobs=jobs).run().violations


def mutants() -> bool:
    """Whether enough of the planted bugs are found."""
    bugs = MUTANTS + JOB_BUGS
    found = 0
    for mutant in bugs:
        seed = first_found(build(mutant))
        found += seed is not None
        print(f"  {seed or 'MISSED':>11}  {mutant.name}", flush=True)
    share = found / len(bugs)
    print(f"{found} of {len(bugs)} planted bugs found: {share:.0%} (goal {GOAL_FOUND:.0%})")
    return share >= GOAL_FOUND


def main(arguments: list[str]) -> int:
    """``seeds [N [FIRST]]`` or ``mutants`` or both."""
    count = int(arguments[1]) if len(arguments) > 1 else SEEDS
    first = int(arguments[2]) if len(arguments) > 2 else 0
    passed = True
    if arguments[:1] != ["mutants"]:
        passed = seeds(count, first)
    if arguments[:1] != ["seeds"]:
        passed = mutants() and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
