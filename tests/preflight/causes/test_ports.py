"""From the ports of a sweep that stayed silent to the node, or the link, and the direction."""

from __future__ import annotations

import itertools
import random

import pytest

from clusterrun.preflight.causes.ports import COMB, blocked, needed_connections
from clusterrun.preflight.thresholds import DEFAULTS

RUN = 3
LOW, HIGH, STEP = COMB.start, COMB.stop - 1, COMB.step


def swept(nodes, chance, shut=(), shut_out=(), shut_links=(), noise=0.0):
    """Return the sweeps between all nodes, with closed ranges at nodes, their ways out, or links."""
    results = {}
    for a, b in itertools.permutations(range(nodes), 2):
        ranges = [dict(shut).get(b), dict(shut_out).get(a), dict(shut_links).get((a, b))]
        shuts = [entry for entry in ranges if entry]
        results[a, b] = frozenset(
            port for port in COMB if any(x <= port <= y for x, y in shuts) or chance.random() < noise
        )
    return results


def named(ports):
    return {(entry.nodes, entry.inward) for entry in ports}


@pytest.mark.parametrize("seed", range(60))
def test_the_node_and_the_direction_of_a_blocked_range_are_named_and_nobody_else(seed) -> None:
    chance = random.Random(seed)
    nodes, width = chance.randint(3, 9), chance.randint(RUN * STEP + STEP, 6000)
    low = chance.randint(LOW, HIGH - width)
    kind = chance.choice(["shut", "shut_out"])
    node = chance.randrange(nodes)
    result = blocked(swept(nodes, chance, **{kind: {node: (low, low + width)}}, noise=0.003), DEFAULTS)
    assert named(result) == {((node,), kind == "shut")}
    assert abs(result[0].first - low) <= 2 * STEP or result[0].last - result[0].first >= (RUN - 1) * STEP
    assert low - STEP <= result[0].first <= result[0].last <= low + width + STEP


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_a_range_that_one_node_cannot_reach_belongs_to_the_link(nodes) -> None:
    observed = swept(nodes, random.Random(0), shut_links={(0, 1): (40000, 41000)})
    assert [(entry.nodes, entry.first, entry.last) for entry in blocked(observed, DEFAULTS)] == [
        ((0, 1), 40000, 40960)
    ]


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
def test_single_silent_ports_are_no_range(noise) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        assert blocked(swept(chance.randint(2, 8), chance, noise=noise), DEFAULTS) == []


@pytest.mark.parametrize("share", [0.15, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_a_connection_limit_is_no_range_of_ports(seed, share) -> None:
    chance = random.Random(seed)
    silent = swept(5, chance)
    for a, b in silent:
        if b == 2:
            silent[a, b] = frozenset(port for port in COMB if chance.random() < share)
    (cause,) = blocked(silent, DEFAULTS)
    assert (cause.nodes, cause.first, cause.last, cause.inward) == ((2,), 0, 0, True)
    assert cause.share == pytest.approx(share, abs=0.06)


def test_connections_that_cannot_be_held_open_are_a_limit_of_the_node_or_of_the_link() -> None:
    silent = dict.fromkeys(itertools.permutations(range(4), 2), frozenset())
    (cause,) = blocked(silent, DEFAULTS, unheld={(0, 2): 20, (1, 2): 25, (3, 2): 20})
    assert (cause.nodes, cause.first, cause.inward, cause.unheld) == ((2,), 0, True, 25)
    (cause,) = blocked(silent, DEFAULTS, unheld={(0, 2): 20})
    assert (cause.nodes, cause.first, cause.unheld) == ((0, 2), 0, 20)
    assert [needed_connections(ranks) for ranks in (1, 2, 8, 64)] == [2, 6, 72, 128]


@pytest.mark.parametrize("seed", range(10))
def test_a_range_that_holds_most_ports_is_a_range(seed) -> None:
    (cause,) = blocked(swept(4, random.Random(seed), shut={1: (35000, 60000)}, noise=0.01), DEFAULTS)
    assert (cause.nodes, cause.inward) == ((1,), True)
    assert (abs(cause.first - 35000) <= STEP, abs(cause.last - 60000) <= STEP) == (True, True)
