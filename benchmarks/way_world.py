"""Simulate dials between nodes with faults that have a direction, and judge which causes are named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from clusterrun.preflight.causes.ways import Way, WayTest, find_causes

# The kinds of faults in a world.
FAULTS = (
    *((), ("all",), ("in",), ("out",), ("link",), ("way",)),
    *(("all", "link"), ("in", "way"), ("all", "all")),
)
TRIES = 3


def fails(kind: str, nodes: tuple[int, ...], way: Way) -> bool:
    """Return whether a fault of this kind makes dials on a way fail."""
    if kind in ("way", "link"):
        return way == nodes or (kind == "link" and way[::-1] == nodes)
    return nodes[0] in {"all": way, "in": way[1:], "out": way[:1]}[kind]


def worlds() -> Iterator[Callable[[], tuple[bool, bool, int]]]:
    for flakes, kinds, seed in product((0.0, 0.02), FAULTS, range(200)):
        yield partial(judged, flakes, kinds, seed)


def judged(flakes: float, kinds: tuple[str, ...], seed: int) -> tuple[bool, bool, int]:
    """Judge a world in which each node dials three neighbours on each side."""
    luck = random.Random(f"{seed}{kinds}")
    count = luck.randint(6, 24)
    links = sorted({tuple(sorted((a, (a + step) % count))) for a, step in product(range(count), (1, 2, 3))})
    faults = set()
    for kind in kinds:
        a, b = luck.choice(links)
        faults.add((kind, (a,) if kind in ("all", "in", "out") else (a, b)))
    tests = []
    for way in (way for ends in links for way in (ends, ends[::-1])):
        is_bad = any(fails(kind, nodes, way) for kind, nodes in faults)
        passes = [not is_bad and luck.random() >= flakes for _ in range(TRIES)]
        tests.append(WayTest(*way, frozenset({1}), frozenset() if any(passes) else frozenset({1})))
    causes = {(cause.fault, cause.nodes) for cause in find_causes(tests)[0] if cause.fault != "cut"}
    return causes == faults, bool(causes - faults), 1
