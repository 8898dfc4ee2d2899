"""Slow rails are named, from the rates of every rail between two nodes."""

from __future__ import annotations

import random

import pytest

from clusterrun.preflight.causes.rails import slow_rails
from clusterrun.preflight.thresholds import DEFAULTS

RAILS = 8


def rates(nodes: int, slow: dict[tuple[int, int], float], sends_only: bool = False, noise: float = 0.02):
    """Return rates of a ring of nodes, 48 GB/s a rail. ``slow``: (node, rail) with its share of that."""
    chance = random.Random(nodes)
    result = {}
    for node in range(nodes):
        neighbours = {(node + 1) % nodes, (node - 1) % nodes} - {node}
        for other in neighbours:
            for rail in range(RAILS):
                receiving = 1.0 if sends_only else slow.get((other, rail), 1.0)
                share = min(slow.get((node, rail), 1.0), receiving)
                result[node, other, rail] = 48.0 * share * chance.uniform(1 - noise, 1)
    return result


def named(rails) -> set[tuple[int, int, bool]]:
    return {(rail.node, rail.rail, rail.is_sending) for rail in rails}


@pytest.mark.parametrize("nodes", [3, 4, 8, 64])
def test_a_rail_at_half_speed_is_named_with_its_node(nodes) -> None:
    rails = slow_rails(rates(nodes, {(1, 3): 0.5}), DEFAULTS)
    assert named(rails) == {(1, 3, True), (1, 3, False)}
    assert all(rail.partner is None for rail in rails)


@pytest.mark.parametrize("nodes", [3, 4, 64])
def test_a_rail_that_is_slow_in_one_direction_is_named_with_its_direction(nodes) -> None:
    rails = slow_rails(rates(nodes, {(2, 7): 0.5}, sends_only=True), DEFAULTS)
    assert named(rails) == {(2, 7, True)}


def test_two_nodes_cannot_tell_which_end_of_a_rail_is_slow() -> None:
    rails = slow_rails(rates(2, {(1, 3): 0.5}), DEFAULTS)
    assert {(rail.node, rail.partner, rail.rail) for rail in rails} == {(0, 1, 3), (1, 0, 3)}


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 64])
def test_healthy_rails_are_not_named(nodes) -> None:
    assert slow_rails(rates(nodes, {}), DEFAULTS) == []


def test_a_node_of_which_all_rails_are_slow_has_no_slow_rail() -> None:
    slow = {(1, rail): 0.5 for rail in range(RAILS)}
    assert named(slow_rails(rates(8, slow), DEFAULTS)) == set()


def test_a_node_with_one_gpu_has_no_rails() -> None:
    one_rail = {key: rate for key, rate in rates(4, {(1, 0): 0.3}).items() if key[2] == 0}
    assert slow_rails(one_rail, DEFAULTS) == []


def test_the_other_partners_of_the_only_partner_tell_which_end_is_slow() -> None:
    ways = [(0, 1), (1, 0), (1, 2), (2, 1)]
    sound = {(a, b, rail): 10.0 for a, b in ways for rail in (0, 1)}
    (sender,) = slow_rails({**sound, (0, 1, 0): 1.0}, DEFAULTS)
    assert (sender.node, sender.rail, sender.is_sending, sender.partner) == (0, 0, True, None)
    (receiver,) = slow_rails({**sound, (0, 1, 0): 1.0, (2, 1, 0): 1.0}, DEFAULTS)
    assert (receiver.node, receiver.rail, receiver.is_sending, receiver.partner) == (1, 0, False, None)
