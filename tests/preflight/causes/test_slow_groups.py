"""The smallest groups of a set that are as slow as the whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.preflight.causes.slow_groups import slow_groups
from clusterrun.preflight.observations import GroupTest

FLOOR = 80.0


def bisected(nodes, slow):
    """Return the named nodes and the number of rounds; `slow(group)`: whether it is slow, or its outcome."""
    search, rounds = slow_groups(tuple(nodes), FLOOR), 0
    try:
        groups = next(search)
        while True:
            rounds += 1
            tested = [node for group in groups for node in group]
            assert len(set(tested)) == len(tested), "groups of a round are disjoint"
            outcomes = [(group, slow(group)) for group in groups]
            groups = search.send([outcome(group, value) for group, value in outcomes])
    except StopIteration as end:
        return end.value, rounds


def outcome(group, slow):
    return slow if isinstance(slow, GroupTest) else GroupTest(group, True, 40.0 if slow else 100.0)


def test_two_nodes_that_are_slow_in_one_group_are_named() -> None:
    assert bisected(range(8), lambda group: {2, 3} <= set(group)) == (((2, 3),), 3)


def test_the_set_is_slow_if_neither_half_is() -> None:
    assert bisected(range(8), lambda group: len(group) > 4) == ((), 1)


def test_two_faults_in_two_halves_are_both_found_at_the_same_time() -> None:
    result = bisected(range(16), lambda group: {0, 1} <= set(group) or {14, 15} <= set(group))
    assert result == (((0, 1), (14, 15)), 4)


def test_a_fault_between_two_quarters_stops_at_the_half_that_has_both() -> None:
    assert bisected(range(16), lambda group: {3, 4} <= set(group))[0] == (tuple(range(8)),)


def test_a_group_that_fails_or_has_a_wrong_sum_is_not_well() -> None:
    failing = bisected(range(8), lambda group: GroupTest(group, 5 not in group))
    wrong = bisected(range(8), lambda group: GroupTest(group, True, wrong="sum" * (6 in group)))
    assert (failing[0], wrong[0]) == (((4, 5),), ((6, 7),))


def test_slowness_that_disappears_at_the_repeat_names_nobody() -> None:
    requested = []

    def once(group):
        requested.append(group)
        return {0, 1} <= set(group) and requested.count((0, 1)) < 2

    assert bisected(range(4), once) == ((), 2)


def test_a_group_without_an_answer_clears_nobody() -> None:
    assert bisected(range(8), lambda group: GroupTest(group, None)) == ((), 1)
    search = slow_groups((0, 1, 2, 3), FLOOR)
    next(search)
    with pytest.raises(StopIteration) as end:
        search.send([GroupTest((0, 3), False)])
    assert end.value.value == ()


@pytest.mark.parametrize("nodes", [(), (4,), (4, 9)])
def test_two_nodes_cannot_be_halved(nodes) -> None:
    assert bisected(nodes, lambda group: True) == ((), 0)


@given(st.integers(3, 300), st.data())
def test_it_ends_in_time_and_names_a_part_that_holds_the_fault(count, data) -> None:
    at = data.draw(st.integers(0, count - 1))
    with_it = data.draw(st.sampled_from([{at}, {at, (at + 1) % count}, {at, (at * 7 + 3) % count}]))
    result, rounds = bisected(range(count), lambda group: with_it <= set(group))
    assert rounds <= math.ceil(math.log2(count))
    assert result == () or [with_it <= set(entry) for entry in result] == [True]


@given(st.integers(3, 64), st.lists(st.sampled_from([True, False, None]), min_size=300, max_size=300))
def test_the_search_ends_in_time_for_any_answers(count, luck) -> None:
    answers = iter(luck)
    _, rounds = bisected(range(count), lambda group: GroupTest(group, next(answers)))
    assert rounds <= math.ceil(math.log2(count))
