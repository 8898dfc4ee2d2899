"""Run many simulated worlds: violations, worlds per hour, replays, and planted bugs that are detected."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.simulator.job_bugs import JOB_BUGS
from benchmarks.simulator.mutants import MUTANTS, build
from benchmarks.simulator.world import World

SEEDS = 5_000
GOAL_SEEDS = 20_000
# Share of the worlds in which a scheduler starts and ends the jobs of the run.
JOBS_SHARE = 0.4
# One seed in this many runs again and must have the same history.
REPLAYED = 50
# Progress is printed after this many seeds.
REPORTED = 1_000
SEEDS_FOR_A_MUTANT = 15_000
GOAL_FOUND = 0.95

TWO_ALIVE = ("live at once", " lives on node ", " starts after ", " is stuck", "runs twice")
NO_END = ("never ends", "is left on node", "go on for ever", "nobody goes on")


class Count:
    """The violations so far, by kind of law."""

    def __init__(self) -> None:
        self.seeds = self.replayed = self.differ = 0
        self.seconds = 0.0
        self.broken: dict[str, list[str]] = {"two epochs alive": [], "no end": [], "other": []}

    def run(self, seed: int, jobs: bool) -> None:
        """Run a world. Replay some worlds; that time is not counted."""
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

    def line(self) -> str:
        """Return one line about all worlds so far."""
        an_hour = self.seeds / self.seconds * 3600 if self.seconds else 0.0
        laws = ", ".join(f"{kind} {len(seeds)} {seeds or ''}".rstrip() for kind, seeds in self.broken.items())
        same = f"{self.replayed - self.differ} of {self.replayed} replayed with the same hash"
        return f"{self.seeds} seeds, {an_hour:,.0f} an hour (goal {GOAL_SEEDS:,}): {laws}; {same}"

    @property
    def passed(self) -> bool:
        """Return whether no law was broken and the goal for the speed is met."""
        met = self.seconds == 0 or self.seeds / self.seconds * 3600 >= GOAL_SEEDS
        return met and not self.differ and not any(self.broken.values())


def _kind(text: str) -> str:
    if text.startswith(("rank ", "a rank ", "epochs ")) and any(phrase in text for phrase in TWO_ALIVE):
        return "two epochs alive"
    return "no end" if any(phrase in text for phrase in NO_END) else "other"


def seeds(count: int, first: int) -> bool:
    """Run this many worlds of both kinds without a planted bug. Return whether all passed."""
    total = Count()
    numbers = {False: first, True: first}
    for _ in range(count):
        jobs = numbers[True] - first < JOBS_SHARE * total.seeds
        total.run(numbers[jobs], jobs)
        numbers[jobs] += 1
        if total.seeds % REPORTED == 0:
            print(f"  {total.line()}", flush=True)
    print(f"{numbers[False] - first} single, {numbers[True] - first} over many jobs: {total.line()}")
    return total.passed


def first_found(machines: tuple[Any, Any]) -> str | None:
    """Return the first seed that detects the bug in ``machines``. Every third world has several jobs."""
    for seed in range(SEEDS_FOR_A_MUTANT):
        if _noticed(machines, seed, jobs=False):
            return f"seed {seed}"
        if seed % 2 == 0 and _noticed(machines, seed // 2, jobs=True):
            return f"jobs {seed // 2}"
    return None


def _noticed(machines: tuple[Any, Any], seed: int, jobs: bool) -> bool:
    """Return whether a law is broken with the bug and not without it."""
    broken = World(seed, machines, jobs=jobs).run().violations
    return bool(broken) and not World(seed, jobs=jobs).run().violations


def mutants() -> bool:
    """Return whether enough of the planted bugs are detected."""
    bugs = MUTANTS + JOB_BUGS
    detected = 0
    for mutant in bugs:
        seed = first_found(build(mutant))
        detected += seed is not None
        print(f"  {seed or 'MISSED':>11}  {mutant.name}", flush=True)
    share = detected / len(bugs)
    print(f"{detected} of {len(bugs)} planted bugs found: {share:.0%} (goal {GOAL_FOUND:.0%})")
    return share >= GOAL_FOUND


def main(arguments: list[str]) -> int:
    """Run ``seeds [N [FIRST]]``, ``mutants``, or both."""
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
