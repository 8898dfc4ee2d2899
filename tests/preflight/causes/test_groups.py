"""Nodes with which only larger groups fail are named. No node is named if the set or a link fails."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.group_world import GroupWorld, searched
from clusterrun.preflight.causes.groups import GroupSearch
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import DEFAULTS, SMALLEST_GROUP
from tests.preflight.simulated import Faults, bad_links, blamed, examined, orders


def test_nodes_of_one_switch_are_reported_together_without_blame() -> None:
    result = searched(GroupWorld(16, across=frozenset({3, 9}), size=5))
    assert (result.bad, result.apart) == ((), (3, 9))


def test_two_nodes_that_fail_from_different_sizes_are_no_switch() -> None:
    result = searched(GroupWorld(16, nodes={3: 4, 9: 8}))
    assert (set(result.bad), result.apart) == ({3, 9}, ())


@settings(max_examples=150)
@given(
    count=st.integers(0, 40), answers=st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=200)
)
def test_the_search_ends_in_time_with_valid_groups_for_any_answers(count, answers) -> None:
    search, luck = GroupSearch(range(count), DEFAULTS), random.Random(count)
    rounds = 0
    while groups := search.next_round():
        assert groups == search.next_round(), "asked twice, it says the same"
        tested = [node for group in groups for node in group]
        assert len(set(tested)) == len(tested), "groups of a round are disjoint"
        assert min(map(len, groups)) > SMALLEST_GROUP
        search.add_outcomes([GroupTest(group, luck.choice(answers)) for group in groups])
        rounds += 1
        assert rounds < 400, "a search without news ends after a few rounds"
    assert not {*search.result().bad} & {*search.result().apart}


def test_a_wrong_sum_is_a_failure_and_unrequested_answers_are_ignored() -> None:
    search = GroupSearch(range(8), DEFAULTS)
    search.add_outcomes([GroupTest((0, 1, 2), False)])
    while groups := search.next_round():
        search.add_outcomes(
            [GroupTest(entry, True, wrong="sum" * (6 in entry and len(entry) > 3)) for entry in groups]
        )
    assert search.result().bad == (6,)


# --- in a whole check ---


@pytest.mark.parametrize("seed", range(12))
def test_the_check_names_the_faulty_node_and_a_spare_replaces_it(seed) -> None:
    luck = random.Random(seed)
    count, spares = luck.choice((6, 8, 10, 13)), luck.choice((0, 1))
    bad, size = luck.randrange(count), luck.randint(3, 5)
    outcome = examined(orders(count, spares, budget=600.0), Faults(in_groups={bad: size}), seed)
    report = outcome.report
    assert (blamed(outcome), bad_links(outcome)) == ({bad}, set())
    assert outcome.excluded == (f"n{bad:04d}",)
    assert outcome.fit == bool(spares)
    (message,) = [finding.message for finding in report.nodes[bad].findings]
    assert "nodes and more fail with it, whichever others they hold" in message


def test_the_check_does_not_pass_without_the_time_to_name_the_node() -> None:
    for budget in (35.0, 60.0, 90.0):
        outcome = examined(orders(12, budget=budget), Faults(in_groups={7: 7}))
        assert not outcome.fit
        assert blamed(outcome) in (set(), {7})
        if not blamed(outcome):
            assert "--preflight-budget gives more time" in outcome.report.set_message


def test_two_nodes_behind_one_switch_are_left_out_without_blame() -> None:
    outcome = examined(orders(14, 2, budget=600.0), Faults(in_groups={2: 4, 9: 4}))
    assert (outcome.fit, blamed(outcome)) == (True, set())
    assert not {2, 9} & set(outcome.world)
    assert "or what connects them to the others" in outcome.report.set_message


def test_the_command_that_trains_without_them_is_printed_if_too_few_remain() -> None:
    outcome = examined(orders(12, budget=600.0), Faults(in_groups={2: 4, 9: 4}))
    assert (outcome.fit, blamed(outcome)) == (False, set())
    assert "--nodes 10 --nodelist n[0000-0001,0003-0008,0010-0011]" in outcome.report.set_message
    assert outcome.excluded == ("n0002", "n0009")
