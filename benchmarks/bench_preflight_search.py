"""Simulate clusters with known faults, and compare what the check reports with the truth.

Each row is a kind of world with its goals. `python -m benchmarks preflight_search 'cut link'` runs the rows
whose names contain the text, and prints which goals are missed. The seeds are fixed, so two versions of the
product meet the same worlds.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice, product, starmap

from benchmarks import check_world, group_world, pair_world, way_world
from benchmarks.group_world import GroupWorld
from benchmarks.pair_world import Mix, PairWorld, searched
from benchmarks.parted_world import Tree, judged
from clusterrun.preflight.causes.pair_search import Search

# Whether the report is exact, whether it blames something healthy, and its rounds.
Judged = tuple[bool, bool, int]
# Decisions for 1,250 nodes may take this many seconds.
MOST_SECONDS = 1.0
# A goal is missed beyond this many standard deviations.
DEVIATIONS = 3


@dataclass(frozen=True)
class Row:
    """A kind of world. ``worlds``: each call simulates a world and judges the report.

    ``exact`` is the least share of exact reports, ``wrong`` the most that blame something healthy, ``rounds``
    the most rounds in the mean.
    """

    name: str
    worlds: Iterable[Callable[[], Judged]]
    exact: float
    wrong: float
    rounds: float

    def run(self, step: int = 1) -> tuple[str, list[str]]:
        """Simulate each world, or one in ``step``. Return the line of a table, and the missed goals."""
        results = [judge() for judge in islice(self.worlds, 0, None, step)]
        count = len(results)
        exact, wrong = (sum(result[at] for result in results) / count for at in (0, 1))
        rounds = [result[2] for result in results]
        mean, spread = statistics.mean(rounds), statistics.pstdev(rounds)
        misses = {
            "exact": exact < self.exact - DEVIATIONS * _deviation(self.exact, count),
            "blamed": wrong > self.wrong + DEVIATIONS * _deviation(self.wrong, count),
            "rounds": mean > self.rounds + 0.1 + DEVIATIONS * spread / count**0.5 * (step > 1),
        }
        line = f"| {self.name} | {count:,} | {exact:.2%} | {wrong:.2%} | {mean:.2f} / {max(rounds)} |"
        return line, [goal for goal, is_missed in misses.items() if is_missed]


def _deviation(share: float, count: int) -> float:
    """Return the standard deviation of a share. One world is always possible."""
    rare = max(min(share, 1 - share), 1 / count)
    return (rare * (1 - rare) / count) ** 0.5


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
# Kinds of worlds, with the worlds of each, the least share of exact reports, the most that blame something
# healthy, and the most rounds in the mean. The goals are the figures of this version.
MIXES = (
    *((Mix(16), 1500, 0.999, 0.001, 2.4), (Mix(64), 600, 1.0, 0.0, 3.3), (Mix(256), 150, 1.0, 0.0, 4.3)),
    *((Mix(1024), 30, 1.0, 0.0, 5.1), (Mix(8, cut=1), 1000, 0.993, 0.005, 9.6)),
    *((Mix(64, cut=1), 400, 0.988, 0.003, 7.3), (Mix(256, cut=1), 100, 0.98, 0.0, 8.2)),
    *((Mix(4, broken=2), 600, 0.99, 0.0, 6.0), (Mix(4, broken=1, cut=1), 600, 0.998, 0.002, 5.3)),
    *((Mix(5, broken=1, cut=1), 600, 0.997, 0.003, 7.4), (Mix(8, broken=1, cut=1), 600, 0.998, 0.0, 9.3)),
    *((Mix(9, broken=2, cut=1), 600, 0.995, 0.003, 10.0), (Mix(12, broken=3), 600, 0.998, 0.002, 5.4)),
    *((Mix(12, broken=6), 300, 1.0, 0.0, 7.0), (Mix(64, broken=4, cut=2), 150, 0.96, 0.007, 8.1)),
    *((Mix(64, broken=21), 150, 1.0, 0.0, 6.4), (Mix(255, broken=16), 50, 1.0, 0.0, 6.5)),
    *((Mix(256, broken=85), 30, 1.0, 0.0, 7.7), (Mix(8, slow=1), 600, 1.0, 0.0, 4.1)),
    *((Mix(8, slow_links=1), 600, 1.0, 0.0, 4.3), (Mix(7, broken=2, slow=1), 600, 1.0, 0.0, 5.8)),
    *((Mix(64, broken=4, cut=1, slow=3, slow_links=1), 75, 0.987, 0.0, 7.7),),
    *((Mix(64, slow=3, factor=0.75), 150, 1.0, 0.0, 6.2),),
    *((Mix(24, broken=2, cut=1, slow=1, slow_links=1, jitter=0.04, every=True), 40, 1.0, 0.0, 26.8),),
    *((Mix(24, jitter=0.08, every=True), 40, 1.0, 0.0, 25.2), (Mix(64, jitter=0.08), 150, 1.0, 0.0, 3.8)),
    *((Mix(64, broken=4, lucky=0.1), 150, 0.793, 0.007, 7.9),),
    *((Mix(16, broken=1, lucky=0.5), 150, 0.347, 0.014, 4.6),),
    *((Mix(64, dips=0.1), 150, 1.0, 0.0, 7.1), (Mix(64, flakes=0.1), 300, 0.98, 0.003, 6.5)),
)
TREES = (
    ("cut uplink", (Tree(2), Tree(3), Tree(2, shuffled=True), Tree(3, shuffled=True)), 1.0, 0.0, 4.2),
    (
        "cut uplinks, several",
        (Tree(2, wrong=3), Tree(3, wrong=3), Tree(2, wrong=8), Tree(3, wrong=3, shuffled=True)),
        *(1.0, 0.0, 5.1),
    ),
    ("cut uplink of one node", (Tree(2, alone=True), Tree(3, alone=True, wrong=2)), 1.0, 0.0, 4.1),
    (
        "cut uplink, one node faulty",
        (Tree(2, broken=1), Tree(3, broken=1, wrong=3), Tree(2, broken=1, shuffled=True)),
        *(1.0, 0.0, 7.4),
    ),
    (
        "cut uplink, 1 to 2% chance",
        (
            *(Tree(2, flakes=0.01), Tree(3, flakes=0.02, wrong=2)),
            *(Tree(3, flakes=0.02, shuffled=True), Tree(2, flakes=0.02, broken=1)),
        ),
        *(1.0, 0.0, 5.0),
    ),
    (
        "slow uplink",
        (Tree(2, SLOW), Tree(3, SLOW), Tree(3, SLOW, wrong=3), Tree(2, SLOW, shuffled=True)),
        *(1.0, 0.0, 3.9),
    ),
    (
        "slow uplink, rates vary by 2 to 5%",
        (
            *(Tree(2, SLOW, jitter=0.02), Tree(3, SLOW, wrong=2, jitter=0.05)),
            *(Tree(3, SLOW, wrong=2, jitter=0.05, flakes=0.02), Tree(2, SLOW, jitter=0.05, shuffled=True)),
        ),
        *(0.988, 0.006, 4.6),
    ),
    (
        "slow uplink, one node faulty or alone",
        (Tree(3, SLOW, broken=1, jitter=0.02), Tree(2, SLOW, alone=True, jitter=0.02)),
        *(1.0, 0.0, 4.2),
    ),
)


def rows() -> Iterator[Row]:
    yield Row("up to a third of 2 … 256 nodes faulty", _up_to_a_third(), 1.0, 0.0, 5.1)
    for mix, trials, *goals in MIXES:
        yield Row(str(mix), [partial(mix.judged, seed) for seed in range(trials)], *goals)
    for name, trees, *goals in TREES:
        yield Row(name, starmap(partial, product([_tree], trees, range(40))), *goals)
    yield Row("directed ways of 6 … 24 nodes: none to two faults", way_world.worlds(), 0.975, 0.0003, 1.0)
    for faulty, *goals in ((1, 0.997, 0.0, 10.7), (2, 0.797, 0.0, 22.5)):
        name = f"{faulty} of 6 … 64 nodes fail in groups of 3 … 9 and more"
        yield Row(name, _groups(partial(group_world.nodes_world, faulty)), *goals)
    kinds = ("healthy", "size", "conflict", "crowd", "uplink")
    worlds = chain.from_iterable(_groups(partial(group_world.other_world, kind)) for kind in kinds)
    yield Row("6 … 64 nodes fail in groups, no node is to blame", worlds, 0.993, 0.0, 14.4)
    yield Row("whole checks: none to three faults", map(check_world.world, range(500)), 0.93, 0.006, 5.1)


def _seconds(world: PairWorld, count: int, **options: bool) -> float:
    """Return the seconds that the search alone takes."""
    began, tested = time.process_time(), 0.0
    search = Search(range(count), **options)  # type: ignore[arg-type]
    while pairs := search.next_round():
        start = time.process_time()
        tests = [world.test(*pair) for pair in pairs]
        tested += time.process_time() - start
        search.take(tests)
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
    missed = []
    print("| world | n | exact | something healthy blamed | rounds, mean / most |\n|---|---|---|---|---|")
    for row in rows():
        if not names or any(name in row.name for name in names):
            line, goals = row.run()
            print(line, *goals, flush=True)
            missed += [row.name] * bool(goals)
    if not names and not _is_fast():
        missed.append("1,250 nodes")
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
