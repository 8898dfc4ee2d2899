"""Laws of every search of pairs, whatever the tests answer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pair_world import Mix, PairWorld, link, searched
from clusterrun.preflight.causes import pair_search
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import DEFAULTS

ANSWERS = st.lists(st.one_of(st.none(), st.booleans(), st.floats(0.0, 200.0)), min_size=1, max_size=400)


def outcome(pair, answer):
    """Return the outcome for a drawn answer: none, failed, passed, or passed with a rate."""
    if isinstance(answer, float):
        return GroupTest(pair, True, answer)
    return GroupTest(pair, answer)


def driven(search, answers, drop=()):
    """Return every round of a search with random answers. `drop` are (round, node)."""
    rounds = []
    while pairs := search.next_round():
        assert pairs == search.next_round(), "asked twice, it says the same"
        rounds.append(pairs)
        for at, node in drop:
            if at == len(rounds):
                search.drop(node)
        search.add_outcomes(
            [outcome(value, answers[hash((at, value)) % len(answers)]) for at, value in enumerate(pairs)]
        )
        assert len(rounds) < 400
    return rounds


@settings(max_examples=150)
@given(
    nodes=st.integers(0, 20),
    spares=st.integers(0, 4),
    every=st.booleans(),
    answers=ANSWERS,
    drop=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 24)), max_size=3),
)
def test_the_search_ends_with_valid_pairs_and_verdicts_for_any_answers(
    nodes, spares, every, answers, drop
) -> None:
    members = range(nodes + spares)
    search = Search(members[:nodes], DEFAULTS, members[nodes:], every)
    rounds = driven(search, answers, drop)
    planned = nodes + spares if every else 3
    assert len(rounds) <= planned + pair_search.MOST_ROUNDS
    for pairs in rounds:
        tested = [node for named_link in pairs for node in named_link]
        assert len(set(tested)) == len(tested)
        assert set(tested) <= set(members)
    result = search.result()
    ended = {node for _, node in drop}
    verdicts = [*result.nodes("broken"), *result.nodes("undetermined"), *result.certified]
    assert len(set(verdicts)) == len(verdicts)
    assert set(result.nodes("slow")) <= set(result.certified)
    named_links = [*result.links("broken"), *result.links("undetermined")]
    assert len(set(named_links)) == len(named_links)
    ends = {node for named_link in named_links for node in named_link}
    assert ends <= set(result.certified), "a link is blamed where both its ends work"
    blamed = [
        named_link.nodes
        for named_link in result.evidence
        if named_link.finding_kind in ("broken", "undetermined")
    ]
    assert sorted(blamed) == sorted(
        [*((node,) for node in (*result.nodes("broken"), *result.nodes("undetermined"))), *named_links]
    )
    if rounds and len(rounds) > max((at for at, _ in drop), default=0):
        assert not ended & {node for named_link in rounds[-1] for node in named_link}
    assert search.next_round() == ()


@settings(max_examples=100)
@given(nodes=st.integers(2, 24), data=st.data())
def test_no_healthy_node_is_blamed_without_chance_for_any_number_of_faults(nodes, data) -> None:
    """Any nodes are broken. No two cut links meet. A node is broken if all its links are cut."""
    broken = data.draw(st.sets(st.integers(0, nodes - 1)))
    order = data.draw(st.permutations(range(nodes)))
    couples = [link(a, b) for a, b in zip(order[::2], order[1::2], strict=False)]
    cut = data.draw(st.sets(st.sampled_from(couples)))
    world = PairWorld(1, broken=frozenset(broken), cut=frozenset(cut))
    result = searched(world, nodes, spares=data.draw(st.integers(0, 2)))
    assert set(result.nodes("broken")) <= broken
    assert {link(*entry) for entry in result.links("broken")} <= cut
    assert not broken & set(result.certified)


@settings(max_examples=60)
@given(nodes=st.integers(4, 130), data=st.data())
def test_up_to_a_third_broken_blames_nobody_else_and_certifies_none_of_them(nodes, data) -> None:
    broken = data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes // 3))
    result = searched(PairWorld(1, broken=frozenset(broken)), nodes)
    assert set(result.nodes("broken")) <= broken <= {*result.nodes("broken"), *result.nodes("undetermined")}
    assert not result.links("broken")


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), broken=st.integers(0, 5))
def test_no_retest_repeats_a_partner_while_a_new_certified_one_exists(seed, broken) -> None:
    mix = Mix(16, broken=broken, cut=1, flakes=0.01)
    world = mix.world(seed)
    search, met, certified = Search(range(16), DEFAULTS), set(), set()
    while pairs := search.next_round():
        for entry in pairs:
            suspect = [node for node in entry if node not in certified]
            if entry in met and len(suspect) == 1:
                others = {frozenset((suspect[0], node)) for node in certified}
                assert others <= {frozenset(observed) for observed in met}
        outcomes = [world.test(*entry) for entry in pairs]
        met |= set(pairs)
        certified |= {node for test in outcomes if test.passed for node in test.nodes}
        search.add_outcomes(outcomes)
