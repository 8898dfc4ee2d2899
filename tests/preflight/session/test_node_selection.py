"""Who trains: spares take places, order is kept, no bad link stays inside."""

from __future__ import annotations

import itertools
import random

import pytest

from clusterrun.preflight.session.node_selection import Choice, choose


def test_fit_nodes_keep_their_places_and_spares_stay_out() -> None:
    assert choose([0, 1, 2], [3], (), ()) == Choice((0, 1, 2), (), ())


def test_a_spare_replaces_an_unfit_node() -> None:
    assert choose([0, 1, 2], [3, 4], {0, 3}, ()) == Choice((4, 1, 2), (), ((0, 4),))


def test_places_stay_empty_without_enough_spares() -> None:
    assert choose([0, 1, 2], [3], {0, 2}, ()) == Choice((3, 1, None), (), ((0, 3),))
    assert not choose([0, 1, 2], [3], {0, 2}, ()).whole


def test_the_later_end_of_a_bad_link_leaves_and_the_common_end_of_several() -> None:
    assert choose([0, 1, 2, 3], [4], (), [(1, 2)]) == Choice((0, 1, 4, 3), (2,), ((2, 4),))
    assert choose([0, 1, 2, 3], [4], (), [(0, 2), (0, 3)]) == Choice((4, 1, 2, 3), (0,), ((0, 4),))


def test_a_spare_with_a_bad_link_into_the_world_is_passed_over() -> None:
    assert choose([0, 1, 2], [3, 4], {1}, [(3, 0)]) == Choice((0, 4, 2), (), ((1, 4),))
    assert choose([0, 1, 2], [3], {1}, [(3, 0)]).world == (0, None, 2)


def test_a_reluctant_node_leaves_only_for_a_spare_without_a_flaw() -> None:
    assert choose([0, 1], [2], (), (), reluctant={1}).world == (0, 2)
    assert choose([0, 1], [2], (), (), reluctant={1, 2}).world == (0, 1)
    assert choose([0, 1], [], (), (), reluctant={1}).world == (0, 1)
    assert choose([0, 1], [2], {0}, (), reluctant={2}).world == (2, 1)


@pytest.mark.parametrize("seed", range(300))
def test_a_world_holds_nobody_twice_nobody_unfit_and_no_bad_link(seed) -> None:
    chance = random.Random(seed)
    nodes, more = chance.randint(1, 8), chance.randint(0, 4)
    everyone = range(nodes + more)
    unfit = set(chance.sample(everyone, chance.randint(0, len(everyone))))
    pairs = list(itertools.combinations(everyone, 2))
    links = chance.sample(pairs, min(len(pairs), chance.randint(0, 4)))
    flawed = set(chance.sample(everyone, chance.randint(0, 2 if len(everyone) > 1 else 1)))
    result = choose(everyone[:nodes], everyone[nodes:], unfit, links, flawed)
    chosen = result.nodes
    assert len(result.world) == nodes
    assert len(set(chosen)) == len(chosen) and not set(chosen) & unfit
    assert not [link for link in links if set(link) <= set(chosen)]
    stayed = [node for place, node in enumerate(result.world) if node == place]
    assert stayed == sorted(stayed)
