"""Run the collective rounds: matrix products, pairs, the whole set and its parts."""

from __future__ import annotations

from clusterrun.preflight import registry
from clusterrun.preflight.causes.groups import GroupSearch
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.causes.rates import distances
from clusterrun.preflight.causes.slow_groups import slow_groups
from clusterrun.preflight.observations import GroupTest, SlowGroup
from clusterrun.preflight.session import expected_bandwidth, network_phase, port_sweep
from clusterrun.preflight.session.group_tests import GroupTests
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import HALF, PAIR, PRODUCT, SET, StartTorch
from clusterrun.preflight.thresholds import (
    BUDGET_SHARE,
    MOST_TRIES,
    SMALLEST_GROUP,
    START_SECONDS,
    for_backend,
)

_ENDED = "the budget ended the pair rounds before all was known; --preflight-budget gives more"


# --- products ---


def products(state: SessionState, group_tests: GroupTests) -> Waits:
    """Run a matrix product on all nodes in parallel. Repeat slow and lost products while other nodes rest.

    A slow product makes its node unfit until a repetition is faster.
    """
    untested = able = explain(state).able()
    for _ in range(MOST_TRIES):
        if not untested:
            break
        yield from group_tests.run("matrix products", PRODUCT, [(node,) for node in untested])
        yield from restart_torch_workers(state)
        products_by_name = {
            node.name: node.product for node in state.nodes.values() if node.product is not None
        }
        slow = registry.slow_products(state.needs, products_by_name)
        running = [node for node in state.present() if node.node in able and node.has_torch]
        untested = [node.node for node in running if node.name in slow or node.product is None]
    for node_state in state.nodes.values():
        if len(node_state.ends) == 1:
            end = node_state.ends[0]
            state.notice(f"the Python of {node_state.name} ended once ({end}), and was started again")


# --- pairs ---


def pair_rounds(state: SessionState, group_tests: GroupTests, all_pairs: bool = False) -> Waits:
    """Run rounds of pairs until the search is finished, or only the time for the whole set remains."""
    yield from restart_torch_workers(state)
    explanation = explain(state)
    elsewhere = explanation.elsewhere()
    able = [node for node in explanation.able() if node not in elsewhere]
    ring = [node for node in explanation.choice().nodes if node in able]
    if len(able) < 2:
        return
    search = Search(
        ring,
        for_backend(state.thresholds, state.backend),
        spares=[node for node in able if node not in ring],
        all_pairs=all_pairs,
        distance=distances({node: state.nodes[node].listening.topology for node in able}),
        avoided=[(min(ends), max(ends)) for ends in explanation.bad_links],
    )
    state.pair_searches.append(search)
    reserved = min(group_tests.limit(SET, len(ring)), BUDGET_SHARE * state.orders.preflight.budget)
    has_failed = False
    while state.clock.seconds_left > reserved:
        yield from restart_torch_workers(state)
        _drop_lost(state, search)
        pairs = search.next_round()
        if not pairs:
            break
        label = f"tests of pairs, round {state.rounds + 1}"
        tests = yield from group_tests.run(label, PAIR, pairs)
        state.rounds += 1
        search.add_outcomes(tests)
        has_failed = has_failed or any(test.passed is False for test in tests)
        if (
            has_failed
            and state.failures_at_sweep < 0
            and state.clock.seconds_left < reserved + port_sweep.SECONDS
        ):
            yield from port_sweep.rounds(state)  # blocked ports may be why the tests take so long
            for node in explain(state).blocked:
                search.drop(node)
    else:
        state.notice(_ENDED)
    _drop_lost(state, search)


def _drop_lost(state: SessionState, search: Search) -> None:
    for node in state.nodes.values():
        if node.gone:
            search.drop(node.node)
            state.explanation = None


def restart_torch_workers(state: SessionState) -> Waits:
    """Restart the torch workers that ended."""
    stopped = [
        node.node
        for node in state.nodes.values()
        if node.torch_worker is None and node.first_torch_worker and not explain(state).is_unfit(node.node)
    ]
    for node in stopped:
        state.ask(node, state.torch_task, START_SECONDS)
    if stopped:
        yield (StartTorch,)


# --- the whole set ---


def whole_set(state: SessionState, group_tests: GroupTests) -> Waits:
    """Test the chosen nodes. If the test fails, search the cause and test the nodes that remain."""
    for _ in range(MOST_TRIES):
        yield from restart_torch_workers(state)
        nodes = _testable_set(state)
        if not nodes or state.clock.seconds_left < 1.0:
            return
        (test,) = yield from group_tests.run(f"the whole set of {len(nodes)}", SET, [nodes])
        if test.passed is None:
            continue
        before = explain(state).choice().world
        yield from (_find_slow if test.passed else _find_cause)(state, group_tests, test)
        passed = any(test.passed for test in state.log.of(GroupTest) if test.kind == SET)
        if explain(state).choice().world == before or (passed and not test.passed):
            return


def _testable_set(state: SessionState) -> tuple[int, ...]:
    """Return the chosen nodes, even if they are too few to train; () if a node cannot be tested."""
    nodes = explain(state).choice().nodes
    return nodes if all(state.nodes[node].has_torch for node in nodes) else ()


def _find_slow(state: SessionState, group_tests: GroupTests, test: GroupTest) -> Waits:
    """Search slow nodes with tests of pairs, unless they ran. Then search slow groups of a slow set."""
    nodes, before = test.nodes, explain(state).choice().world
    floor, _ = expected_bandwidth.floor_of(state, nodes)
    is_below_floor = test.rate is not None and test.rate < floor
    if not state.pair_searches:
        if not is_below_floor:
            # Pairs are tested if one half of the set is slower than the other.
            middle = len(nodes) // 2
            if len(nodes) < 2 * SMALLEST_GROUP or state.clock.seconds_left < group_tests.limit(HALF, middle):
                return
            halves = (nodes[:middle], nodes[middle:])
            tests = yield from group_tests.run("parts of the set: 2", HALF, halves)
            rates = [half.rate for half in tests if half.passed and half.rate is not None]
            slow_few = for_backend(state.thresholds, state.backend).slow_few
            if len(rates) < len(tests) or min(rates) >= max(rates) * (1 - slow_few):
                return
        yield from pair_rounds(state, group_tests)
    if not is_below_floor or explain(state).choice().world != before:
        return
    search = slow_groups(nodes, floor)
    groups_below: tuple[tuple[int, ...], ...] = ()
    try:
        groups = next(search)
        while state.clock.seconds_left > 1.0:
            label = f"parts of the set: {len(groups)}"
            groups = search.send((yield from group_tests.run(label, HALF, groups)))
    except StopIteration as end:
        groups_below = end.value
    for group in groups_below:
        state.observe(SlowGroup(group, floor))


def _find_cause(state: SessionState, group_tests: GroupTests, failed: GroupTest) -> Waits:
    """Search why the whole set failed: test untested links, then the set once more, then its parts."""
    before, count = explain(state).choice().world, len(failed.nodes)
    if count > 1:
        if not state.pair_searches:
            yield from pair_rounds(state, group_tests)
        if explain(state).choice().world == before:
            yield from network_phase.everyone(state)
        # In the ring, each node met two others.
        has_untested = count > 3 and not state.orders.preflight.all_pairs
        if explain(state).choice().world == before and has_untested and group_tests.has_time_for(count):
            yield from pair_rounds(state, group_tests, all_pairs=True)
    if explain(state).choice().world != before:
        return
    yield from restart_torch_workers(state)
    if _testable_set(state) == failed.nodes:
        label = f"the whole set of {count}"
        (repeated,) = yield from group_tests.run(label, SET, [failed.nodes])
        if repeated.passed:
            why = failed.wrong or failed.why
            state.notice(f"the whole set failed once ({why}) and passed when repeated")
        if repeated.passed is not False:
            return
        failed = repeated
    search = GroupSearch(failed.nodes, state.thresholds)
    state.group_searches.append((failed, search))
    while count > 2 and state.clock.seconds_left > group_tests.limit(HALF, count):
        groups = search.next_round()
        if not groups or any(state.nodes[node].gone for node in failed.nodes):
            break
        yield from restart_torch_workers(state)
        label = f"parts of the set that failed: {len(groups)}"
        search.add_outcomes((yield from group_tests.run(label, HALF, groups)))
