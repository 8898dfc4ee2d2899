"""Which pairs are tested in which round."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.preflight.causes.pair_search import all_rounds, ring_rounds
from clusterrun.preflight.causes.pairs import link

sets_of_nodes = st.lists(st.integers(0, 5000), min_size=0, max_size=70, unique=True)


def disjoint(pairs):
    nodes = [node for entry in pairs for node in entry]
    return len(set(nodes)) == len(nodes)


def test_a_ring_of_six_is_tested_in_two_rounds() -> None:
    assert ring_rounds([0, 1, 2, 3, 4, 5]) == (((0, 1), (2, 3), (4, 5)), ((1, 2), (3, 4), (0, 5)))


def test_a_ring_of_five_is_tested_in_three_rounds() -> None:
    assert ring_rounds([0, 1, 2, 3, 4]) == (((0, 1), (2, 3)), ((1, 2), (3, 4)), ((0, 4),))


@pytest.mark.parametrize(("nodes", "rounds"), [([], ()), ([7], ()), ([7, 3], (((3, 7),),))])
def test_the_smallest_rings(nodes, rounds) -> None:
    assert ring_rounds(nodes) == rounds
    assert all_rounds(nodes) == rounds


@given(sets_of_nodes)
def test_every_link_of_the_ring_is_tested_once_in_disjoint_pairs(nodes) -> None:
    rounds = ring_rounds(nodes)
    created = [entry for pairs in rounds for entry in pairs]
    beside = zip(nodes, nodes[1:] + nodes[:1], strict=True)
    assert len(created) == len(set(created))
    assert set(created) == {link(a, b) for a, b in beside if a != b}
    assert all(map(disjoint, rounds))
    assert len(rounds) == (0 if len(nodes) < 2 else 1 if len(nodes) == 2 else 2 + len(nodes) % 2)


@given(sets_of_nodes)
def test_every_pair_is_tested_once_in_the_smallest_number_of_rounds(nodes) -> None:
    rounds = all_rounds(nodes)
    created = [entry for pairs in rounds for entry in pairs]
    assert sorted(created) == sorted(link(a, b) for a, b in itertools.combinations(nodes, 2))
    assert all(map(disjoint, rounds))
    assert len(rounds) == (0 if len(nodes) < 2 else len(nodes) - 1 + len(nodes) % 2)
