"""Simulate clusters with known faults, and compare what the check reports with the truth.

Each row is a kind of world with its goals. `python -m benchmarks preflight_search 'cut link'` runs the rows
whose names contain the text, and prints which goals are missed. The seeds are fixed, so two versions of the
product meet the same worlds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice, product, starmap
from pathlib import Path
from typing import NamedTuple

from benchmarks import check_world, group_world, pair_world, way_world
from benchmarks.group_world import GroupWorld
from benchmarks.pair_world import Mix, PairWorld, searched
from benchmarks.parted_world import Tree, judged
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.thresholds import DEFAULTS

# Whether the report is exact, whether it blames something healthy, and its rounds.
Judged = tuple[bool, bool, int]
# Decisions for 1,250 nodes may take this many seconds.
MOST_SECONDS = 1.0
# The tests run one world of this many.
SAMPLE = 8
# By name of a row: the goal of all its worlds, and that of the sample. ``--record`` writes the file.
GOALS = Path(__file__).with_name("preflight_goals.json")


class Figures(NamedTuple):
    """Counts over worlds. The seeds are fixed, so a goal is the exact most of each count.

    No report is better than exact: 0 inexact and 0 blamed are a goal by themselves. Every other goal, and
    every goal for rounds, is what an earlier version reached. It shows whether a change makes worlds worse.
    """

    inexact: int  # worlds whose report is not exact
    blamed: int  # worlds whose report blames something healthy
    rounds: int  # of all worlds

    @classmethod
    def of(cls, results: Sequence[Judged]) -> Figures:
        return cls(
            sum(not is_exact for is_exact, _, _ in results),
            sum(is_wrong for _, is_wrong, _ in results),
            sum(rounds for _, _, rounds in results),
        )

    def missed(self, goal: Sequence[int]) -> list[str]:
        return [name for name, value, most in zip(self._fields, self, goal, strict=True) if value > most]


@dataclass(frozen=True)
class Row:
    """A kind of world. ``worlds``: each call simulates a world and judges the report."""

    name: str
    worlds: Iterable[Callable[[], Judged]]

    def run(self, step: int = 1) -> list[Judged]:
        """Simulate all worlds, or one in ``step``."""
        return [judge() for judge in islice(self.worlds, 0, None, step)]


def _faulty_sets(count: int, faulty: int, luck: random.Random) -> Iterator[frozenset[int]]:
    """Yield sets of nodes that are hard in a ring, and a few at random."""
    yield frozenset(range(faulty))
    yield frozenset((at - faulty // 2) % count for at in range(faulty))
    yield frozenset(2 * at for at in range(faulty))
    yield frozenset([at for at in range(count) if at % 3 != 2][:faulty])
    yield frozenset([at for at in range(count) if at % 4 < 2][:faulty])
    for _ in range(4):
        yield frozenset(luck.sample(range(count), faulty))


def _up_to_a_third() -> Iterator[Callable[[], Judged]]:
    """Yield all sets of faulty nodes for small counts, hard and random ones up to 256 nodes."""
    luck = random.Random(20)
    for count in (*range(2, 33), 48, 63, 64, 100, 129, 256):
        most, is_small = max(count // 3, 1), count <= 9
        sizes = range(most + 1) if is_small else sorted({0, 1, 2, count // 4, most - 1, most})
        for faulty in sizes:
            every = combinations(range(count), faulty)
            for broken in every if is_small else _faulty_sets(count, faulty, luck):
                yield partial(_faulty, frozenset(broken), count)


def _faulty(broken: frozenset[int], count: int) -> Judged:
    world = PairWorld(1, broken=broken)
    result = searched(world, count, int(count <= 3))
    return (*pair_world.judged(world, result), result.rounds)


def _tree(tree: Tree, seed: int) -> Judged:
    world = tree.world(seed)
    result = searched(world, len(world.places))
    return (*judged(world, result), result.rounds)


def _groups(make: Callable[[int, int, float], GroupWorld]) -> Iterator[Callable[[], Judged]]:
    counts = (6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
    for count, flakes, seed in product(counts, (0.0, 0.01, 0.02), range(12)):
        yield partial(_group, make, seed, count, flakes)


def _group(make: Callable[[int, int, float], GroupWorld], seed: int, count: int, flakes: float) -> Judged:
    world = make(seed, count, flakes)
    result = group_world.searched(world)
    verdict = group_world.judged(world, result)
    return verdict in ("exact", "set"), verdict == "wrong", result.rounds


SLOW = (0.5, 0.25, 0.1)
# Kinds of worlds, and how many of each.
MIXES = (
    (Mix(16), 1500),
    (Mix(64), 600),
    (Mix(256), 150),
    (Mix(1024), 30),
    (Mix(8, cut=1), 1000),
    (Mix(64, cut=1), 400),
    (Mix(256, cut=1), 100),
    (Mix(4, broken=2), 600),
    (Mix(4, broken=1, cut=1), 600),
    (Mix(5, broken=1, cut=1), 600),
    (Mix(8, broken=1, cut=1), 600),
    (Mix(9, broken=2, cut=1), 600),
    (Mix(12, broken=3), 600),
    (Mix(12, broken=6), 300),
    (Mix(64, broken=4, cut=2), 150),
    (Mix(64, broken=21), 150),
    (Mix(255, broken=16), 50),
    (Mix(256, broken=85), 30),
    (Mix(8, slow=1), 600),
    (Mix(8, slow_links=1), 600),
    (Mix(7, broken=2, slow=1), 600),
    (Mix(64, broken=4, cut=1, slow=3, slow_links=1), 75),
    (Mix(64, slow=3, factor=0.75), 150),
    (Mix(24, broken=2, cut=1, slow=1, slow_links=1, jitter=0.04, every=True), 40),
    (Mix(24, jitter=0.08, every=True), 40),
    (Mix(64, jitter=0.08), 150),
    (Mix(64, broken=4, lucky=0.1), 150),
    (Mix(16, broken=1, lucky=0.5), 150),
    (Mix(64, dips=0.1), 150),
    (Mix(64, flakes=0.1), 300),
)
TREES = (
    ("cut uplink", (Tree(2), Tree(3), Tree(2, shuffled=True), Tree(3, shuffled=True))),
    (
        "cut uplinks, several",
        (Tree(2, wrong=3), Tree(3, wrong=3), Tree(2, wrong=8), Tree(3, wrong=3, shuffled=True)),
    ),
    ("cut uplink of one node", (Tree(2, alone=True), Tree(3, alone=True, wrong=2))),
    (
        "cut uplink, one node faulty",
        (Tree(2, broken=1), Tree(3, broken=1, wrong=3), Tree(2, broken=1, shuffled=True)),
    ),
    (
        "cut uplink, 1 to 2% chance",
        (
            *(Tree(2, flakes=0.01), Tree(3, flakes=0.02, wrong=2)),
            *(Tree(3, flakes=0.02, shuffled=True), Tree(2, flakes=0.02, broken=1)),
        ),
    ),
    ("slow uplink", (Tree(2, SLOW), Tree(3, SLOW), Tree(3, SLOW, wrong=3), Tree(2, SLOW, shuffled=True))),
    (
        "slow uplink, rates vary by 2 to 5%",
        (
            *(Tree(2, SLOW, jitter=0.02), Tree(3, SLOW, wrong=2, jitter=0.05)),
            *(Tree(3, SLOW, wrong=2, jitter=0.05, flakes=0.02), Tree(2, SLOW, jitter=0.05, shuffled=True)),
        ),
    ),
    (
        "slow uplink, one node faulty or alone",
        (Tree(3, SLOW, broken=1, jitter=0.02), Tree(2, SLOW, alone=True, jitter=0.02)),
    ),
)


def rows() -> Iterator[Row]:
    yield Row("up to a third of 2 … 256 nodes faulty", _up_to_a_third())
    for mix, trials in MIXES:
        yield Row(str(mix), [partial(mix.judged, seed) for seed in range(trials)])
    for name, trees in TREES:
        yield Row(name, starmap(partial, product([_tree], trees, range(40))))
    yield Row("directed ways of 6 … 24 nodes: none to two faults", way_world.worlds())
    for faulty in (1, 2):
        name = f"{faulty} of 6 … 64 nodes fail in groups of 3 … 9 and more"
        yield Row(name, _groups(partial(group_world.nodes_world, faulty)))
    kinds = ("healthy", "size", "conflict", "crowd", "uplink")
    worlds = chain.from_iterable(_groups(partial(group_world.other_world, kind)) for kind in kinds)
    yield Row("6 … 64 nodes fail in groups, no node is to blame", worlds)
    yield Row("whole checks: none to three faults", map(check_world.world, range(500)))


def _seconds(world: PairWorld, count: int) -> float:
    """Return the seconds that the search alone takes."""
    began, tested = time.process_time(), 0.0
    search = Search(range(count), DEFAULTS)
    while pairs := search.next_round():
        start = time.process_time()
        tests = [world.test(*pair) for pair in pairs]
        tested += time.process_time() - start
        search.add_outcomes(tests)
    search.result()
    return time.process_time() - began - tested


def _is_fast() -> bool:
    """Print how long the decisions for 1,250 nodes take."""
    worlds = {
        "healthy": PairWorld(1, flakes=0.02, jitter=0.02),
        "a tenth faulty": PairWorld(
            2, broken=frozenset(random.Random(2).sample(range(1250), 125)), flakes=0.02
        ),
        "a third faulty": PairWorld(3, broken=frozenset(random.Random(3).sample(range(1250), 416))),
        "all faulty": PairWorld(4, broken=frozenset(range(1250))),
    }
    seconds = {name: _seconds(world, 1250) for name, world in worlds.items()}
    print("1,250 nodes:", ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items()), flush=True)
    return max(seconds.values()) < MOST_SECONDS


def main(names: list[str]) -> int:
    """Run the rows whose names contain one of these texts, or all. Return how many missed a goal."""
    is_recording = "--record" in names
    names = [name for name in names if name != "--record"]
    goals = json.loads(GOALS.read_text(encoding="utf-8"))
    missed = []
    print("| world | n | exact | something healthy blamed | rounds, mean / most | goal: inexact, blamed |")
    print("|---|---|---|---|---|---|")
    for row in rows():
        if names and not any(name in row.name for name in names):
            continue
        results = row.run()
        figures, count = Figures.of(results), len(results)
        if is_recording:
            goals[row.name] = [figures, Figures.of(results[::SAMPLE])]
        inexact, blamed, rounds = (value / count for value in figures)
        most = max(rounds for _, _, rounds in results)
        goal = Figures(*goals[row.name][0])
        source = "" if not goal.inexact and not goal.blamed else " (an earlier version)"
        line = f"| {row.name} | {count:,} | {1 - inexact:.2%} | {blamed:.2%} | {rounds:.2f} / {most} "
        print(f"{line}| {goal.inexact}, {goal.blamed}{source} |", *figures.missed(goal), flush=True)
        missed += [row.name] * bool(figures.missed(goal))
    if is_recording:
        lines = (
            f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(goal)}" for name, goal in goals.items()
        )
        GOALS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    if not names and not _is_fast():
        missed.append("1,250 nodes")
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
