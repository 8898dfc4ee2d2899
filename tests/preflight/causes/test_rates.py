"""Links over more switches are slower, all of them: a link is compared with its like."""

from __future__ import annotations

import pytest

from benchmarks.pair_world import PairWorld, link, searched
from clusterrun.preflight.causes.rates import LinkDistance, distances, link_levels, same_distance


@pytest.mark.parametrize(
    ("node", "other", "apart"),
    [
        ("leaf1.n1", "leaf1.n2", 0),
        ("leaf1.n1", "leaf2.n2", 1),
        ("spine.leaf1.n1", "spine.leaf2.n2", 1),
        ("core1.spine1.leaf1.n1", "core1.spine2.leaf1.n2", 2),
        ("core1.spine1.leaf1.n1", "core2.spine1.leaf1.n2", 3),
        ("n1", "n2", 0),
        ("", "leaf1.n2", 0),
    ],
)
def test_the_distance_of_two_nodes_is_the_number_of_levels_to_their_common_switch(node, other, apart) -> None:
    distance = distances({0: node, 1: other})
    assert distance((0, 1)) == distance((1, 0)) == apart


def test_a_kind_of_link_with_the_usual_rate_is_unchanged() -> None:
    best = {(0, 1): 100.0, (1, 2): 95.0, (2, 3): 50.0}
    assert link_levels(best, lambda ends: ends[0], 0.1) == {
        0: LinkDistance(0, 1, 100.0, 1.0),
        1: LinkDistance(1, 1, 95.0, 1.0),
        2: LinkDistance(2, 1, 50.0, 2.0),
    }
    assert link_levels({}, same_distance, 0.1) == {}


def racks(nodes: int, size: int = 4):
    """Return a world of racks, and the distance of its links."""
    return lambda ends: int(ends[0] // size != ends[1] // size)


@pytest.mark.parametrize("nodes", [8, 16, 64])
@pytest.mark.parametrize("across", [0.8, 0.5, 0.25])
def test_equally_slower_links_between_racks_are_not_slow(nodes, across) -> None:
    for seed in range(20):
        world = PairWorld(seed, jitter=0.02, rack=4, across=across)
        result = searched(world, nodes, distance=racks(nodes))
        assert (result.nodes("slow"), result.links("slow")) == ((), ())
        assert [level.levels for level in result.levels] == [0, 1]
        assert [level.factor > 1 for level in result.levels] == [False, True]


@pytest.mark.parametrize(("nodes", "bad"), [(16, (3, 4)), (64, (3, 4)), (16, (5, 6)), (64, (13, 14))])
def test_a_link_that_is_slower_than_its_like_is_named_between_racks_and_within(nodes, bad) -> None:
    for seed in range(20):
        world = PairWorld(seed, jitter=0.02, rack=4, across=0.5, link_speeds={link(*bad): 0.4})
        search_result = searched(world, nodes, distance=racks(nodes))
        assert (search_result.nodes("slow"), search_result.links("slow")) == ((), (bad,))
        (result,) = [entry for entry in search_result.evidence if entry.nodes == bad]
        usual = 50.0 if bad == (3, 4) else 100.0
        assert result.rate == pytest.approx(0.4 * usual, rel=0.1)
        assert result.median == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("nodes", [16, 64])
@pytest.mark.parametrize("bad", [4, 5])
def test_a_slow_node_at_the_edge_of_its_rack_or_within_is_named(nodes, bad) -> None:
    for seed in range(20):
        world = PairWorld(seed, jitter=0.02, rack=4, across=0.5, speeds={bad: 0.4})
        result = searched(world, nodes, distance=racks(nodes))
        assert (result.nodes("slow"), result.links("slow")) == ((bad,), ())


def test_the_network_is_slow_between_racks_if_no_topology_is_known() -> None:
    result = searched(PairWorld(1, jitter=0.02, rack=8, across=0.5), 16)
    assert result.slow_parts == (tuple(range(8)), tuple(range(8, 16)))
    assert (result.nodes("slow"), result.links("slow")) == ((), ())
