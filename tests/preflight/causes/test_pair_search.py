"""The blame for failed tests of pairs: short tapes, round by round."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.pair_world import PairWorld, judged, link, searched
from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.causes.pair_search import Evidence, Search
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import DEFAULTS, for_backend


def tape(world, nodes, spares=0, **options):
    """Return the rounds of a search, and its result."""
    search = Search(range(nodes), DEFAULTS, range(nodes, nodes + spares), **options)
    rounds = []
    while pairs := search.next_round():
        rounds.append(pairs)
        search.add_outcomes([world.test(*pair) for pair in pairs])
    return rounds, search.result()


def test_a_healthy_ring_is_certified_in_its_matchings() -> None:
    rounds, result = tape(PairWorld(1), 4)
    assert rounds == [((0, 1), (2, 3)), ((1, 2), (0, 3))]
    assert result.evidence == ()
    assert (
        result.certified,
        result.nodes("broken"),
        result.links("broken"),
        result.nodes("undetermined"),
    ) == ((0, 1, 2, 3), (), (), ())
    assert (result.nodes("slow"), result.links("slow"), result.rounds, result.median) == ((), (), 2, 100.0)


def test_a_bad_node_is_named_after_failures_with_three_certified_partners() -> None:
    rounds, result = tape(PairWorld(1, broken=frozenset({2})), 6)
    assert len(rounds) == 3
    assert (result.nodes("broken"), result.certified, result.links("broken")) == ((2,), (0, 1, 3, 4, 5), ())
    (why,) = result.evidence
    assert why.against[:2] == (3, 1)
    assert why == Evidence((2,), "broken", Grade.FAIL, tests=3, failed=3, against=why.against)
    assert len(set(why.against)) == 3


def test_a_bad_link_is_named_after_three_failures_and_both_ends_are_certified() -> None:
    rounds, result = tape(PairWorld(1, cut=frozenset({link(2, 3)})), 6)
    again = [[pair for pair in pairs if {2, 3} & {*pair}] for pairs in rounds[2:]]
    assert again[:2] == [[(2, 3)], [(2, 3)]]
    assert (result.nodes("broken"), result.links("broken"), result.certified) == (
        (),
        ((2, 3),),
        (0, 1, 2, 3, 4, 5),
    )
    assert result.evidence == (Evidence((2, 3), "broken", Grade.FAIL, tests=3, failed=3),)


class Moody(PairWorld):
    """Node 0 passes its first test, and no other."""

    def test(self, a: int, b: int) -> GroupTest:
        self.met = getattr(self, "met", 0) + (a == 0)
        return GroupTest((a, b), a != 0 or self.met == 1)


@pytest.mark.parametrize(("nodes", "tests"), [(6, 5), (12, 5), (64, 5)])
def test_a_node_that_passed_once_and_fails_with_all_others_is_bad_without_bad_links(nodes, tests) -> None:
    _, result = tape(Moody(1), nodes)
    assert (result.nodes("broken"), result.links("broken"), result.links("undetermined")) == ((0,), (), ())
    assert result.certified == tuple(range(1, nodes))
    (why,) = result.evidence
    assert (why.nodes, why.finding_kind, why.tests >= tests, why.tests - why.failed) == (
        (0,),
        "broken",
        True,
        1,
    )


def test_a_link_that_passes_when_repeated_is_worth_a_line_and_no_blame() -> None:
    search = Search(range(4), DEFAULTS)
    search.next_round()
    search.add_outcomes([GroupTest((0, 1), False), GroupTest((2, 3), True)])
    search.next_round()
    search.add_outcomes([GroupTest((1, 2), True), GroupTest((0, 3), True)])
    assert search.next_round() == ((0, 1),)
    search.add_outcomes([GroupTest((1, 0), True)])
    assert search.next_round() == ()
    assert search.result().links("broken") == search.result().links("undetermined") == ()
    assert search.result().evidence == (Evidence((0, 1), "flaky", Grade.PASS, tests=2, failed=1),)


def test_unrequested_outcomes_are_ignored() -> None:
    search = Search(range(4), DEFAULTS)
    search.add_outcomes([GroupTest((0, 1), False)])
    assert search.result().rounds == 0
    assert search.next_round() == ((0, 1), (2, 3))


def test_neither_of_two_nodes_that_fail_without_a_third_is_blamed() -> None:
    rounds, result = tape(PairWorld(1, broken=frozenset({0})), 2)
    assert (result.nodes("broken"), result.nodes("undetermined"), result.certified) == ((), (0, 1), ())
    assert rounds == [((0, 1),)] * 3
    assert {entry.nodes: (entry.finding_kind, entry.grade, entry.failed) for entry in result.evidence} == {
        (0,): ("undetermined", Grade.UNDETERMINED, 3),
        (1,): ("undetermined", Grade.UNDETERMINED, 3),
    }


def test_two_nodes_that_failed_once_by_chance_are_certified_by_the_repeat() -> None:
    search = Search([4, 7], DEFAULTS)
    search.next_round()
    search.add_outcomes([GroupTest((4, 7), False)])
    search.next_round()
    search.add_outcomes([GroupTest((4, 7), True)])
    assert search.next_round() == ()
    assert search.result().certified == (4, 7)


@pytest.mark.parametrize(
    ("nodes", "spares", "broken"),
    [
        (2, 1, {0}),
        (2, 1, {1}),
        (2, 1, {2}),
        (2, 2, {0, 2}),
        (3, 0, {0}),
        (3, 0, {1}),
        (3, 1, {2, 3}),
        (3, 1, {0}),
        (4, 0, {0, 1}),
        (4, 0, {0, 2}),
        (4, 2, {0, 1, 2}),
        (6, 0, {0, 2, 4}),
        (5, 0, {0, 2, 4}),
        (12, 0, {1, 2, 7}),
    ],
)
def test_small_sets_with_and_without_spares_are_solved_exactly(nodes, spares, broken) -> None:
    world = PairWorld(1, broken=frozenset(broken))
    result = searched(world, nodes, spares)
    assert not set(result.nodes("broken")) - broken
    assert not broken & set(result.certified)
    assert not result.links("broken")
    assert broken - set(result.nodes("broken")) <= set(range(nodes, nodes + spares)), (
        "only a spare may be left open"
    )


def test_no_node_is_blamed_if_no_pair_passes_and_the_search_ends_soon() -> None:
    rounds, result = tape(PairWorld(1, broken=frozenset(range(40))), 40)
    assert (result.nodes("broken"), result.certified, result.nodes("undetermined")) == (
        (),
        (),
        tuple(range(40)),
    )
    assert len(rounds) == 5


def test_a_bad_link_beside_a_bad_node_is_reported_separately() -> None:
    world = PairWorld(1, broken=frozenset({3}), cut=frozenset({link(4, 5)}))
    assert judged(world, searched(world, 8)) == (True, False)


def test_one_chance_failure_beside_a_cut_link_does_not_make_a_node_bad() -> None:
    """One of four nodes is bad, another has a cut link. Two proven partners must fail twice with it."""
    world = PairWorld(1, broken=frozenset({0}), cut=frozenset({link(1, 2)}))
    search = Search(range(4), DEFAULTS)
    flaked = False
    while pairs := search.next_round():
        outcomes = [world.test(*value) for value in pairs]
        for at, value in enumerate(pairs):
            if value == (1, 3) and not flaked:
                outcomes[at], flaked = GroupTest((1, 3), False), True
        search.add_outcomes(outcomes)
    assert flaked
    assert judged(world, search.result()) == (True, False)


def test_a_node_with_two_cut_links_works_and_both_links_are_named() -> None:
    world = PairWorld(1, cut=frozenset({link(3, 4), link(4, 5)}))
    result = searched(world, 8)
    assert judged(world, result) == (True, False)
    assert 4 in result.certified


def test_a_node_that_corrupts_sums_is_bad_however_its_tests_ended() -> None:
    search = Search(range(6), DEFAULTS)
    while pairs := search.next_round():
        search.add_outcomes([GroupTest(pair, passed=True, wrong="sum" * (2 in pair)) for pair in pairs])
    (why,) = search.result().evidence
    assert (search.result().nodes("broken"), why.failed, why.wrong) == ((2,), 3, 3)


def test_a_test_with_a_lost_partner_is_repeated_with_another_node() -> None:
    search = Search(range(4), DEFAULTS)
    search.next_round()
    search.add_outcomes([GroupTest((0, 1), None), GroupTest((2, 3), True)])
    search.drop(1)
    assert search.next_round() == ((0, 3),)
    search.add_outcomes([GroupTest((0, 3), None)])
    retest = search.next_round()
    assert retest in (((0, 2),), ((0, 3),))
    search.add_outcomes([GroupTest(pair, True) for pair in retest])
    while pairs := search.next_round():
        search.add_outcomes([GroupTest(pair, True) for pair in pairs])
    result = search.result()
    assert (
        result.certified,
        result.nodes("broken"),
        result.nodes("undetermined"),
        result.links("broken"),
    ) == ((0, 2, 3), (), (), ())


def test_a_node_dropped_while_its_round_runs_is_in_it_no_more() -> None:
    search = Search(range(4), DEFAULTS)
    search.next_round()
    search.drop(3)
    assert search.next_round() == ((0, 1),)


def test_a_node_cannot_appear_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        Search([0, 1], DEFAULTS, [1])


def test_a_single_node_needs_no_pair() -> None:
    assert Search([0], DEFAULTS).next_round() == ()
    assert Search([0], DEFAULTS, [1, 2]).result().nodes("undetermined") == ()
    assert Search([], DEFAULTS).next_round() == ()


def test_idle_spares_are_tested_in_the_rounds_of_the_ring_at_no_cost() -> None:
    rounds, result = tape(PairWorld(1), 4, spares=2)
    assert len(rounds) == 2
    assert result.certified == (0, 1, 2, 3, 4, 5)


def test_a_spare_that_may_take_a_place_is_tested_with_the_neighbours_of_that_place() -> None:
    rounds, result = tape(PairWorld(1, broken=frozenset({3})), 8, spares=1)
    tested_with = [pair[0] for pairs in rounds for pair in pairs if 8 in pair]
    assert 8 in result.certified
    assert {2, 4} <= {*tested_with}


def test_a_spare_is_not_tested_where_nobody_needs_it_and_it_would_take_a_round() -> None:
    rounds, result = tape(PairWorld(1), 4, spares=1)
    assert len(rounds) == 2
    assert 4 not in result.certified


def test_all_pairs_names_a_link_outside_the_ring() -> None:
    world = PairWorld(1, cut=frozenset({link(1, 5)}))
    rounds, result = tape(world, 8, all_pairs=True)
    assert {pair for pairs in rounds for pair in pairs} == {
        (a, b) for a, b in itertools.combinations(range(8), 2)
    }
    assert judged(world, result) == (True, False)
    assert len(rounds) == 7 + 2
    assert tape(world, 8)[1].links("broken") == ()


def test_all_pairs_stops_testing_a_bad_node() -> None:
    rounds, result = tape(PairWorld(1, broken=frozenset({5})), 16, all_pairs=True)
    assert result.nodes("broken") == (5,)
    assert sum(5 in pair for pairs in rounds for pair in pairs) < 8


def test_a_slow_node_is_slow_with_every_partner() -> None:
    result = searched(PairWorld(1, speeds={3: 0.4}), 8)
    assert (result.nodes("broken"), result.nodes("slow"), result.links("slow"), result.median) == (
        (),
        (3,),
        (),
        100.0,
    )
    (why,) = result.evidence
    assert (why.nodes, why.finding_kind, why.grade, why.rate, why.limit) == (
        (3,),
        "slow",
        Grade.FAIL,
        40.0,
        90.0,
    )
    assert why.failed == why.tests >= 4
    assert len(why.against) >= 3


def test_a_slow_link_is_slow_with_one_partner_only() -> None:
    result = searched(PairWorld(1, link_speeds={link(3, 4): 0.8}), 8)
    assert (result.nodes("broken"), result.nodes("slow"), result.links("slow")) == ((), (), ((3, 4),))
    (why,) = result.evidence
    assert (why.nodes, why.grade, why.rate, why.median) == ((3, 4), Grade.WARN, 80.0, 100.0)


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 7])
def test_a_slow_node_of_few_differs_from_its_partners(nodes) -> None:
    result = searched(PairWorld(1, speeds={1: 0.5}), nodes)
    assert (result.nodes("slow"), result.links("slow")) == ((1,), ())


def test_a_slow_third_of_the_nodes_does_not_become_the_reference() -> None:
    world = PairWorld(1, speeds={0: 0.5, 1: 0.5, 3: 0.5})
    assert set(searched(world, 9).nodes("slow")) == {0, 1, 3}


def test_one_slow_test_is_no_slow_link() -> None:
    search = Search(range(8), DEFAULTS)
    once = True
    while pairs := search.next_round():
        outcomes = [GroupTest(pair, True, 100.0) for pair in pairs]
        if once:
            outcomes[0], once = replace(outcomes[0], rate=30.0), False
        search.add_outcomes(outcomes)
    assert (search.result().nodes("slow"), search.result().links("slow")) == ((), ())


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("jitter", [0.02, 0.1, 0.2, 0.35])
def test_a_pair_that_reached_the_limit_once_is_not_slow(backend, jitter) -> None:
    limits = for_backend(DEFAULTS, backend)
    for seed in range(40):
        luck = random.Random(seed)
        link_speeds = {link(1, 2): luck.choice((1.0, 0.6, 0.3))}
        world = PairWorld(seed, jitter=jitter, dips=luck.choice((0.0, 0.1, 0.3)), link_speeds=link_speeds)
        for every in (False, True):
            result = searched(world, luck.choice((4, 6, 8, 12)), limits=limits, all_pairs=every)
            slow = [entry for entry in result.evidence if entry.finding_kind == "slow"]
            assert all(entry.rate < entry.limit for entry in slow), (seed, slow)


def test_a_link_that_was_fast_once_is_not_slow() -> None:
    search, met = Search(range(8), DEFAULTS), 0
    while pairs := search.next_round():
        met += (2, 3) in pairs
        odd = 92.0 if met == 2 else 30.0
        search.add_outcomes([GroupTest(pair, True, odd if pair == (2, 3) else 100.0) for pair in pairs])
    assert met > 1
    assert search.result().links("slow") == ()


def test_nothing_is_slow_if_all_pairs_are_equally_slow() -> None:
    world = PairWorld(1, full=3.0)
    result = searched(world, 8, limits=replace(DEFAULTS, pair_floor=50.0))
    assert (result.nodes("slow"), result.links("slow"), result.median) == ((), (), 3.0)


def test_rates_that_are_not_numbers_are_ignored() -> None:
    search = Search(range(4), DEFAULTS)
    while pairs := search.next_round():
        search.add_outcomes([GroupTest(pair, True, float("nan")) for pair in pairs])
    assert (search.result().median, search.result().certified) == (None, (0, 1, 2, 3))


def test_an_intermediate_result_is_available() -> None:
    search = Search(range(4), DEFAULTS)
    search.next_round()
    search.add_outcomes([GroupTest((0, 1), False), GroupTest((2, 3), True)])
    result = search.result()
    assert (result.nodes("undetermined"), result.certified, result.rounds) == ((0, 1), (2, 3), 1)


def test_a_node_whose_tests_give_no_answers_is_given_up_without_blame() -> None:
    rounds, result = tape(PairWorld(1, silent=frozenset({3})), 12)
    assert (result.nodes("broken"), result.nodes("undetermined"), result.links("broken")) == ((), (), ())
    assert set(range(12)) - set(result.certified) == {3}
    assert sum(3 in pair for pairs in rounds for pair in pairs) == 6


def test_the_one_healthy_pair_of_four_is_found_after_a_chance_failure() -> None:
    world = PairWorld(1, broken=frozenset({0, 1}))
    search = Search(range(4), DEFAULTS)
    first = True
    while pairs := search.next_round():
        outcomes = [world.test(*pair) for pair in pairs]
        if first:
            outcomes, first = [GroupTest(pair, False) for pair in pairs], False
        search.add_outcomes(outcomes)
    assert set(search.result().nodes("broken")) == {0, 1}
    assert set(search.result().certified) == {2, 3}
