"""Simulate whole checks of clusters with up to three faults, and judge their reports."""

from __future__ import annotations

import random
from collections.abc import Callable

from clusterrun.model.preflight_report import Grade
from tests.preflight.simulated import Faults, bad_links, blamed, examined, orders

# Faults of a node by field, with the value for the node.
OF_NODE = {
    **dict.fromkeys(("absent", "frozen", "broken", "corrupt", "damaged", "no_torch", "crashes"), True),
    **dict.fromkeys(("full_shm", "late_checks", "small_mtu", "nonsense", "stopped"), True),
    "slow": 0.2,
    "clocks": 60.0,
    "blocked": {0, 1},
    "shut": [(40000, 44000)],
    "shut_out": [(40000, 44000)],
    "limits": 0.5,
    "loses": 0.1,
}
# Faults of a link by field, with the value for the link.
OF_LINK = {"cut": True, "broken_links": True, "slow_links": 0.1, "lossy": 0.1}


def world(seed: int) -> Callable[[], tuple[bool, bool, int]]:
    """Return what judges the check with this seed.

    A link outside the ring may stay unseen, and so may a link of a faulty node.
    """
    luck = random.Random(seed)
    count, spares = luck.randint(6, 24), luck.randint(0, 2)
    faults, nodes, links = Faults(), set(), set()
    drawn = luck.sample(range(count), 6)
    for _ in range(luck.choice((0, 1, 1, 2, 3))):
        if luck.random() < 0.7:
            kind, node = luck.choice(sorted(OF_NODE)), drawn.pop()
            _add(faults, kind, node, OF_NODE[kind])
            if kind == "stopped":
                faults.lost_in[node] = "pair"
            nodes.add(node)
        else:
            kind, ends = luck.choice(sorted(OF_LINK)), (drawn.pop(), drawn.pop())
            _add(faults, kind, ends if kind in ("cut", "lossy") else frozenset(ends), OF_LINK[kind])
            links.add(frozenset(ends))

    def judged() -> tuple[bool, bool, int]:
        outcome = examined(orders(count, spares, budget=120.0), faults, seed, flakes=0.01)
        named = {frozenset(ends[:2]) for ends in bad_links(outcome)}
        failed = {int(node.node[1:]) for node in outcome.report.nodes if node.verdict is Grade.FAIL}
        is_wrong = bool(failed - nodes or [ends for ends in named - links if not ends & nodes])
        return blamed(outcome) == nodes and not is_wrong, is_wrong, outcome.report.rounds

    return judged


def _add(faults: Faults, kind: str, key: object, value: object) -> None:
    field = getattr(faults, kind)
    if isinstance(field, dict):
        field[key] = value
    else:
        field.add(key)
