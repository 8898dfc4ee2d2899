"""The smallest part of a set that is as bad as the whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.preflight.search.bisect import Bisect, BisectResult, GroupOutcome


def bisected(nodes, fails, floor=0.0):
    """The result where `fails(group)` says how a group goes: a GroupOutcome, or whether it fails."""
    bisect = Bisect(nodes, floor)
    while groups := bisect.next_round():
        told = [node for group in groups for node in group]
        assert len(set(told)) == len(told), "groups of a round are disjoint"
        said = [(group, fails(group)) for group in groups]
        bisect.take(
            [one if isinstance(one, GroupOutcome) else GroupOutcome(group, not one) for group, one in said]
        )
    return bisect.result()


def test_two_nodes_that_cannot_be_in_one_group_are_named():
    result = bisected(range(8), lambda group: {2, 3} <= set(group))
    assert (result.subsets, result.set_only, result.rounds) == (((2, 3),), False, 3)


def test_where_no_half_reproduces_it_it_is_the_set():
    result = bisected(range(8), lambda group: len(group) > 4)
    assert (result.subsets, result.set_only, result.rounds) == ((), True, 1)


def test_two_faults_in_two_halves_are_both_found_at_the_same_time():
    result = bisected(range(16), lambda group: {0, 1} <= set(group) or {14, 15} <= set(group))
    assert (result.subsets, result.rounds) == (((0, 1), (14, 15)), 4)


def test_a_fault_between_two_quarters_stops_at_the_half_that_has_both():
    result = bisected(range(16), lambda group: {3, 4} <= set(group))
    assert (result.subsets, result.set_only) == ((tuple(range(8)),), False)


def test_slow_is_a_fault_where_there_is_a_floor():
    def rate(group):
        return GroupOutcome(group, True, 40.0 if 5 in group else 100.0)

    assert bisected(range(8), rate, floor=80.0).subsets == ((4, 5),)
    assert bisected(range(8), rate).set_only


def test_a_wrong_sum_is_a_fault():
    def outcome(group):
        return GroupOutcome(group, True, wrong=6 in group)

    assert bisected(range(8), outcome).subsets == ((6, 7),)


def test_what_goes_away_when_it_is_repeated_names_nobody():
    asked = []

    def once(group):
        asked.append(group)
        return {0, 1} <= set(group) and asked.count((0, 1)) < 2

    result = bisected(range(4), once)
    assert (result.subsets, result.set_only) == ((), False)


def test_a_group_that_told_nothing_clears_nobody():
    result = bisected(range(8), lambda group: GroupOutcome(group, None))
    assert (result.subsets, result.set_only, result.rounds) == ((), False, 1)


@pytest.mark.parametrize("nodes", [(), (4,), (4, 9)])
def test_two_nodes_cannot_be_halved(nodes):
    assert Bisect(nodes).next_round() == ()
    assert Bisect(nodes).result() == BisectResult((), True, 0, ())


def test_a_group_that_is_missing_told_nothing_and_one_not_asked_for_is_ignored():
    bisect = Bisect(range(4))
    bisect.take([GroupOutcome((0, 3), False)])
    assert bisect.result() == BisectResult((), False, 1, ())


@given(st.integers(3, 300), st.data())
def test_it_ends_in_time_and_names_a_part_that_holds_the_fault(count, data):
    at = data.draw(st.integers(0, count - 1))
    with_it = data.draw(st.sampled_from([{at}, {at, (at + 1) % count}, {at, (at * 7 + 3) % count}]))
    result = bisected(range(count), lambda group: with_it <= set(group))
    assert result.rounds <= math.ceil(math.log2(count))
    assert result.set_only or [with_it <= set(one) for one in result.subsets] == [True]


@given(st.integers(3, 64), st.lists(st.sampled_from([True, False, None]), min_size=300, max_size=300))
def test_it_ends_in_time_whatever_it_is_told(count, luck):
    told = iter(luck)
    result = bisected(range(count), lambda group: GroupOutcome(group, next(told)))
    assert result.rounds <= math.ceil(math.log2(count))
