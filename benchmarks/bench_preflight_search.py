"""The search for bad nodes and links against make-believe clusters: exactness, false blame, rounds, time."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks import group_world
from benchmarks.group_world import GroupWorld, nodes_world, other_world
from benchmarks.pair_world import PairWorld, exact, link, neighbours_then_fastest, searched
from benchmarks.parted_world import Tree, judged
from clusterrun.preflight.causes.pair_search import Search, SearchResult
from clusterrun.preflight.observations import GroupTest

MOST_ROUNDS = 10
MOST_FALSE = 0.003
LEAST_LINKS = 0.99
MOST_SECONDS = 1.0
Z = 1.96


@dataclass
class Tally:
    """How often something was so, over so many worlds."""

    hits: int = 0
    trials: int = 0

    def add(self, hit: bool) -> None:
        self.hits += hit
        self.trials += 1

    @property
    def share(self) -> float:
        return self.hits / self.trials

    @property
    def bounds(self) -> tuple[float, float]:
        """Wilson's interval that holds the true share with 95 %."""
        n, p = self.trials, self.share
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * (p * (1 - p) / n + Z * Z / (4 * n * n)) ** 0.5
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.bounds
        return f"{self.hits} of {self.trials} = {self.share:.2%} (95 %: {low:.2%} to {high:.2%})"


def faulty_sets(count: int, faulty: int, luck: random.Random) -> Iterator[frozenset[int]]:
    """The ways to be broken that are hard in a ring, and a few by chance."""
    yield frozenset(range(faulty))
    yield frozenset((at - faulty // 2) % count for at in range(faulty))
    yield frozenset(2 * at for at in range(faulty))
    yield frozenset([at for at in range(count) if at % 3 != 2][:faulty])
    yield frozenset([at for at in range(count) if at % 4 < 2][:faulty])
    for _ in range(4):
        yield frozenset(luck.sample(range(count), faulty))


def up_to_a_third() -> bool:
    """Any f <= N/3, no noise: all sets for small N, hard and random ones up to 256."""
    right, rounds = Tally(), []
    luck = random.Random(20)
    for count in range(2, 257):
        spares, most = int(count <= 3), max(count // 3, 1)
        every = count <= 10
        some = range(most + 1) if every else sorted({0, 1, 2, count // 4, most - 1, most})
        for faulty in some:
            combinations: Iterable[Iterable[int]] = itertools.combinations(range(count), faulty)
            for broken in combinations if every else faulty_sets(count, faulty, luck):
                world = PairWorld(1, frozenset(broken))
                said = searched(world, count, spares)
                right.add(exact(world, said))
                rounds.append(said.rounds)
    print(f"f <= N/3, N = 2 … 256: exact in {right}; rounds at most {max(rounds)}", flush=True)
    return right.hits == right.trials and max(rounds) <= MOST_ROUNDS


def healthy(count: int, trials: int, seed: int = 0) -> tuple[Tally, Tally, Tally, float]:
    """All healthy, 2 % of tests fail by chance: nodes blamed, links blamed, nodes by DLRover's rule."""
    nodes, links, theirs, rounds = Tally(), Tally(), Tally(), []
    for trial in range(trials):
        said = searched(PairWorld(seed + trial, flakes=0.02, jitter=0.02), count)
        nodes.add(bool(said.bad))
        links.add(bool(said.bad_links))
        rounds.append(said.rounds)
        theirs.add(bool(neighbours_then_fastest(PairWorld(seed + trial, flakes=0.02), count)))
    return nodes, links, theirs, statistics.mean(rounds)


def false_blame() -> bool:
    """Some healthy node blamed under 2 % flakes; DLRover's rule in the same worlds."""
    passed = True
    for count, trials in ((16, 6000), (64, 4000), (256, 5000), (1024, 400)):
        nodes, links, theirs, rounds = healthy(count, trials)
        print(f"healthy, 2 % flakes, N = {count}: mean {rounds:.1f} rounds")
        print(f"  a node blamed  {nodes}\n  a link blamed  {links}\n  DLRover's rule {theirs}", flush=True)
        passed = passed and (count != 256 or nodes.share <= MOST_FALSE)
    return passed


def cut_link(count: int, trials: int, seed: int = 0) -> Tally:
    """One broken ring link, 2 % flakes: named, and both its ends certified."""
    named = Tally()
    for trial in range(trials):
        at = random.Random(trial).randrange(count)
        ends = (at, (at + 1) % count)
        said = searched(
            PairWorld(seed + trial, cut=frozenset({link(*ends)}), flakes=0.02, jitter=0.02), count
        )
        blamed = {link(one.a, one.b) for one in said.bad_links}
        named.add(
            link(*ends) in blamed and set(ends) <= set(said.certified) and not set(ends) & set(said.bad)
        )
    return named


def links() -> bool:
    """One bad ring link at three sizes."""
    passed = True
    for count, trials in ((8, 4000), (64, 2000), (256, 1500)):
        named = cut_link(count, trials)
        print(f"one bad ring link, 2 % flakes, N = {count}: named, both ends cleared in {named}", flush=True)
        passed = passed and named.share >= LEAST_LINKS
    return passed


@dataclass(frozen=True)
class Mix:
    """A kind of world with several things wrong at once."""

    nodes: int
    broken: int = 0
    cut: int = 0
    slow: int = 0
    slow_links: int = 0
    spares: int = 0
    flakes: float = 0.02
    jitter: float = 0.02
    dips: float = 0.0
    factor: float = 0.5
    every: bool = False
    lucky: float = 0.0

    def world(self, seed: int) -> PairWorld:
        """Nodes and links that are wrong are drawn; links are of the ring, between nodes that are well."""
        luck = random.Random(f"{self}{seed}")
        drawn = luck.sample(range(self.nodes), self.broken + self.slow)
        ring = [(at, (at + 1) % self.nodes) for at in range(self.nodes)]
        well = [ends for ends in ring if not set(ends) & set(drawn)]
        chosen = luck.sample(well, min(len(well), self.cut + self.slow_links))
        return PairWorld(
            seed,
            broken=frozenset(drawn[: self.broken]),
            cut=frozenset(link(*ends) for ends in chosen[: self.cut]),
            speeds=dict.fromkeys(drawn[self.broken :], self.factor),
            link_speeds={link(*ends): self.factor for ends in chosen[self.cut :]},
            flakes=self.flakes,
            jitter=self.jitter,
            dips=self.dips,
            lucky=self.lucky,
        )

    def __str__(self) -> str:
        wrong = (
            ("bad", self.broken),
            ("cut", self.cut),
            ("slow", self.slow),
            ("slow links", self.slow_links),
        )
        what = ", ".join(f"{number} {name}" for name, number in wrong if number) or "healthy"
        luck = f"{self.flakes:.0%} flakes, {self.jitter:.0%} jitter, {self.dips:.0%} dips"
        lucky = f", bad ones pass {self.lucky:.0%}" if self.lucky else ""
        return f"N = {self.nodes}: {what}, {luck}{lucky}{', all pairs' if self.every else ''}"


MIXES = (
    (Mix(4, broken=2), 2000),
    (Mix(4, broken=1, cut=1), 2000),
    (Mix(5, broken=1, cut=1), 2000),
    (Mix(8, broken=1, cut=1), 2000),
    (Mix(9, broken=2, cut=1), 2000),
    (Mix(12, broken=3), 2000),
    (Mix(12, broken=6), 1000),
    (Mix(64, broken=4, cut=2), 600),
    (Mix(64, broken=21), 600),
    (Mix(255, broken=16), 200),
    (Mix(256, broken=85), 200),
    (Mix(8, slow=1), 2000),
    (Mix(8, slow_links=1), 2000),
    (Mix(7, broken=2, slow=1), 2000),
    (Mix(64, broken=4, cut=1, slow=3, slow_links=1), 600),
    (Mix(64, slow=3, factor=0.75), 600),
    (Mix(64, broken=3, cut=1, slow=2, slow_links=2, jitter=0.04, every=True), 60),
    (Mix(64, jitter=0.08, every=True), 60),
    (Mix(64, jitter=0.08), 600),
    (Mix(64, broken=4, lucky=0.1), 600),
    (Mix(64, dips=0.1), 600),
    (Mix(64, flakes=0.1), 600),
)


def wrongly(world: PairWorld, said: SearchResult) -> tuple[bool, bool]:
    """Whether anything healthy was blamed, and whether anything wrong was not named."""
    cut = {link(one.a, one.b) for one in said.bad_links}
    slow = {link(one.a, one.b) for one in said.slow_links}
    blamed = (set(said.bad) | set(said.slow), cut | slow)
    wrong = (set(world.broken) | set(world.speeds), set(world.cut) | set(world.link_speeds))
    false = bool(blamed[0] - wrong[0] or blamed[1] - wrong[1])
    return false, bool(wrong[0] - blamed[0] or wrong[1] - blamed[1])


def several_at_once() -> bool:
    """Beyond the goals: combinations, each with false blame and what was missed."""
    for mix, trials in MIXES:
        false, missed, rounds = Tally(), Tally(), []
        for seed in range(trials):
            world = mix.world(seed)
            said = searched(world, mix.nodes, mix.spares, all_pairs=mix.every)
            blamed, left = wrongly(world, said)
            false.add(blamed)
            missed.add(left)
            rounds.append(said.rounds)
        print(f"{mix}\n  false blame {false}\n  missed      {missed}")
        print(f"  rounds      mean {statistics.mean(rounds):.1f}, most {max(rounds)}", flush=True)
    return True


def deciding(world: PairWorld, count: int, **options: bool) -> tuple[float, int]:
    """Seconds spent in the search alone, and its rounds."""
    began = time.perf_counter()
    search = Search(range(count), **options)  # type: ignore[arg-type]
    spent = time.perf_counter() - began
    while True:
        began = time.perf_counter()
        pairs = search.next_round()
        spent += time.perf_counter() - began
        outcomes: list[GroupTest] = [world.test(one.a, one.b) for one in pairs]
        began = time.perf_counter()
        search.take(outcomes)
        said = search.result() if not pairs else None
        spent += time.perf_counter() - began
        if said is not None:
            return spent, said.rounds


def large() -> bool:
    """N = 1,250: all pairing and verdicts in less than a second, in the worst of some worlds."""
    worlds = {
        "healthy": PairWorld(1, flakes=0.02, jitter=0.02),
        "a tenth bad": PairWorld(2, broken=frozenset(random.Random(2).sample(range(1250), 125)), flakes=0.02),
        "a third bad": PairWorld(3, broken=frozenset(random.Random(3).sample(range(1250), 416))),
        "all bad": PairWorld(4, broken=frozenset(range(1250))),
    }
    took = {}
    for name, world in worlds.items():
        took[name], rounds = deciding(world, 1250)
        print(f"N = 1,250, {name}: {took[name]:.2f} s in {rounds} rounds", flush=True)
    seconds, rounds = deciding(PairWorld(5, flakes=0.02, jitter=0.02), 1250, all_pairs=True)
    print(f"N = 1,250, all pairs: {seconds:.1f} s in {rounds} rounds", flush=True)
    return max(took.values()) < MOST_SECONDS


SLOW = (0.5, 0.25, 0.1)
TREES = {
    "a switch's uplink is cut": (Tree(2), Tree(3), Tree(2, shuffled=True), Tree(3, shuffled=True)),
    "several are cut": (
        Tree(2, wrong=3),
        Tree(3, wrong=3),
        Tree(2, wrong=8),
        Tree(3, wrong=3, shuffled=True),
    ),
    "one node alone is cut off": (Tree(2, alone=True), Tree(3, alone=True, wrong=2)),
    "cut, and a bad node": (Tree(2, broken=1), Tree(3, broken=1, wrong=3), Tree(2, broken=1, shuffled=True)),
    "cut, 1 to 2 % of tests fail by chance": (
        Tree(2, flakes=0.01),
        Tree(3, flakes=0.02, wrong=2),
        Tree(3, flakes=0.02, shuffled=True),
        Tree(2, flakes=0.02, broken=1),
    ),
    "slow uplinks": (Tree(2, SLOW), Tree(3, SLOW), Tree(3, SLOW, wrong=3), Tree(2, SLOW, shuffled=True)),
    "slow uplinks, rates vary by 2 to 5 %": (
        Tree(2, SLOW, jitter=0.02),
        Tree(3, SLOW, wrong=2, jitter=0.05),
        Tree(3, SLOW, wrong=2, jitter=0.05, flakes=0.02),
        Tree(2, SLOW, jitter=0.05, shuffled=True),
    ),
    "slow uplinks, and a bad node, or one node alone": (
        Tree(3, SLOW, broken=1, jitter=0.02),
        Tree(2, SLOW, alone=True, jitter=0.02),
    ),
}
LEAST_EXACT = 0.99


def parted(trials: int = 250) -> bool:
    """Trees of switches with uplinks that are cut or slow, 4 to 64 nodes: all told, and nobody blamed."""
    all_exact, all_wrong = Tally(), Tally()
    for name, trees in TREES.items():
        exactly, wrong, rounds = Tally(), Tally(), []
        for tree in trees:
            for seed in range(trials):
                world = tree.world(seed)
                said = searched(world, len(world.places))
                for tallies, hit in zip(
                    ((exactly, all_exact), (wrong, all_wrong)), judged(world, said), strict=True
                ):
                    for outcomes in tallies:
                        outcomes.add(hit)
                rounds.append(said.rounds)
        print(
            f"{name}: exact {exactly}; wrong {wrong.hits}; rounds mean {statistics.mean(rounds):.1f}",
            flush=True,
        )
    print(f"parted networks: exact in {all_exact}; wrong in {all_wrong}", flush=True)
    return all_exact.share >= LEAST_EXACT and not all_wrong.hits


def groups(trials: int = 60) -> bool:
    """Nodes that fail in larger groups only, and worlds where no node is to blame, 6 to 64 nodes."""
    kinds: dict[str, Callable[[int, int, float], GroupWorld]] = {
        "one node": lambda seed, count, flakes: nodes_world(seed, count, 1, flakes),
        "two nodes": lambda seed, count, flakes: nodes_world(seed, count, 2, flakes),
    }
    for kind in ("healthy", "size", "conflict", "crowd", "uplink"):
        kinds[kind] = lambda seed, count, flakes, kind=kind: other_world(seed, count, kind, flakes)  # type: ignore[misc]
    wrong = 0
    for kind, make in kinds.items():
        for flakes in (0.0, 0.01, 0.02):
            told: Counter[str] = Counter()
            rounds, tests, failed = [], [], []
            for count, seed in itertools.product((6, 7, 8, 10, 12, 16, 24, 32, 48, 64), range(trials)):
                world = make(seed, count, flakes)
                said = group_world.searched(world)
                told[group_world.judged(world, said)] += 1
                rounds.append(said.rounds)
                tests.append(world.tests)
                failed.append(world.failed)
            wrong += told["wrong"]
            means = ", ".join(f"{statistics.mean(one):.1f}" for one in (rounds, tests, failed))
            print(
                f"groups, {kind}, {flakes:.0%} chance: {dict(told)}; rounds, tests, failed tests: {means}; "
                f"rounds at most {max(rounds)}",
                flush=True,
            )
    return not wrong


FIGURES: dict[str, Callable[[], bool]] = {
    "third": up_to_a_third,
    "flakes": false_blame,
    "links": links,
    "large": large,
    "mixes": several_at_once,
    "parted": parted,
    "groups": groups,
}


def main(names: list[str]) -> int:
    """All figures, or those named."""
    missed = [name for name in names or FIGURES if not FIGURES[name]()]
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
