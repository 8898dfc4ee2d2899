"""Networks that are partitioned, or slow between groups of nodes: named as such, and no node is blamed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pair_world import PairWorld, searched
from benchmarks.parted_world import TreeWorld, judged
from clusterrun.model.orders import Level
from tests.preflight.simulated import Faults, bad_links, blamed, examined, orders

SPLITS = [
    ({0, 1, 2, 3}, {4, 5, 6, 7}),
    ({0, 1}, {2, 3, 4, 5, 6, 7}),
    ({0, 1, 2, 3, 4, 5}, {6, 7}),
    ({0, 2, 4, 6}, {1, 3, 5, 7}),
    ({0, 1}, {2, 3, 4}, {5, 6, 7}),
]


@settings(max_examples=80)
@given(sizes=st.lists(st.integers(2, 12), min_size=2, max_size=4))
def test_groups_of_neighbours_that_do_not_reach_each_other_are_parts(sizes) -> None:
    ends = list(itertools.accumulate([0, *sizes]))
    groups = [tuple(range(a, b)) for a, b in itertools.pairwise(ends)]
    places = {node: (at,) for at, group in enumerate(groups) for node in group}
    world = TreeWorld(1, places=places, uplinks={(at,): 0.0 for at in range(len(groups))})
    assert judged(world, searched(world, sum(sizes))) == (True, False)


@pytest.mark.parametrize("count", [4, 7, 16, 33])
def test_bad_nodes_form_no_part_because_they_fail_with_each_other(count) -> None:
    for broken in ({0, 1}, {1, 3}, {0, count - 1}):
        result = searched(PairWorld(1, broken=frozenset(broken)), count)
        assert (set(result.nodes("broken")), result.parts) == (broken, ())


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("silent", [False, True])
def test_a_parted_network_blames_no_node_and_the_largest_part_is_offered(split, silent) -> None:
    outcome = examined(orders(8, budget=200.0), Faults(parts=split, silent=silent))
    report = outcome.report
    largest = max(split, key=lambda part: (len(part), 0 in part))
    assert not outcome.fit
    assert (blamed(outcome), bad_links(outcome), report.excluded) == (set(), set(), ())
    assert "the network is partitioned between" in report.set_message
    assert f"--nodes {len(largest)} --nodelist n[" in report.set_message
    assert set(outcome.world) == largest or len({len(part) for part in split}) < len(split)
    assert len(outcome.excluded) == 8 - len(outcome.world)


def test_a_quick_check_tells_a_parted_network_as_well() -> None:
    outcome = examined(orders(8, level=Level.QUICK), Faults(parts=SPLITS[1]))
    assert "the network is partitioned between" in outcome.report.set_message
    assert blamed(outcome) == set()


@pytest.mark.parametrize("silent", [False, True])
def test_the_largest_part_trains_with_enough_spares(silent) -> None:
    outcome = examined(orders(6, 2), Faults(parts=SPLITS[1], silent=silent))
    assert outcome.fit
    assert set(outcome.world) == {2, 3, 4, 5, 6, 7}
    assert (outcome.report.verdict.value, blamed(outcome)) == ("warn", set())


def test_only_the_bad_node_inside_a_part_is_blamed() -> None:
    outcome = examined(orders(8, budget=200.0), Faults(parts=SPLITS[0], broken={5}))
    assert blamed(outcome) == {5}
    assert outcome.report.excluded == ("n0005",)
    assert "the network is partitioned between" in outcome.report.set_message


def test_several_nodes_that_answer_nobody_may_be_parted_and_are_not_remembered() -> None:
    outcome = examined(orders(8), Faults(absent={4, 5, 6, 7}))
    report = outcome.report
    assert "the network is partitioned between them, or those are down" in report.set_message
    assert report.excluded == ()
    assert {node.verdict.value for node in report.nodes[4:]} == {"undetermined"}
    assert outcome.excluded == ("n0004", "n0005", "n0006", "n0007"), "another try leaves them out"


def test_a_slow_uplink_is_one_finding_and_all_nodes_train() -> None:
    outcome = examined(orders(8), Faults(parts=SPLITS[0], uplink=0.1))
    assert outcome.fit
    assert (blamed(outcome), bad_links(outcome)) == (set(), set())
    assert "the network is slow between n[0000-0003] and n[0004-0007]" in outcome.report.set_message


@pytest.mark.parametrize("split", SPLITS[:3])
def test_rates_of_machines_that_are_busy_with_other_work_blame_no_node_and_no_network(split) -> None:
    told_slow = set()
    for seed in range(3):
        for busy in (False, True):
            faults = Faults(parts=split, uplink=0.1, busy=busy)
            outcome = examined(orders(sum(map(len, split))), faults, seed)
            assert (outcome.fit, blamed(outcome), bad_links(outcome)) == (True, set(), set()), seed
            told_slow.add((busy, "slow" in outcome.report.set_message))
    assert (False, True) in told_slow
    assert (True, True) not in told_slow


def test_a_slow_node_is_named_among_machines_that_are_busy_with_other_work() -> None:
    for seed in range(5):
        assert blamed(examined(orders(6), Faults(busy=True, slow={2: 0.01}), seed)) == {2}, seed
