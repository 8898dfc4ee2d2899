"""Run the collective rounds: matrix products, pairs, the whole set and its parts."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from clusterrun.preflight import registry
from clusterrun.preflight.causes.groups import GroupSearch
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.causes.rates import distances
from clusterrun.preflight.causes.slow_groups import slow_groups
from clusterrun.preflight.observations import HALF, PAIR, PRODUCT, SET, GroupTest, SlowGroup
from clusterrun.preflight.session import expected_bandwidth, network_phase, port_sweep
from clusterrun.preflight.session.group_tests import GroupTests
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import StartTorch
from clusterrun.preflight.thresholds import (
    BUDGET_SHARE,
    MOST_TRIES,
    SMALLEST_GROUP,
    START_SECONDS,
    for_backend,
)

Waits = Iterator[tuple[type, ...]]

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


class PairRounds:
    """The pair rounds of a check."""

    def __init__(self, group_tests: GroupTests, every: bool = False) -> None:
        self.state, self.group_tests = group_tests.state, group_tests
        self.every = every or group_tests.state.orders.preflight.all_pairs

    def rounds(self) -> Waits:
        """Run rounds until the search is finished, or only the time for the whole set remains."""
        state = self.state
        yield from restart_torch_workers(state)
        explanation = explain(state)
        elsewhere = explanation.elsewhere()
        able = [node for node in explanation.able() if node not in elsewhere]
        ring = [node for node in explanation.choice().nodes if node in able]
        if len(able) < 2:
            return
        spares = [node for node in able if node not in ring]
        orders = state.orders.preflight
        limits = for_backend(state.limits, state.backend)
        distance = distances({node: state.nodes[node].listening.topology for node in able})
        search = Search(ring, spares, self.every, limits, distance)
        search.avoid((min(ends), max(ends)) for ends in explanation.bad_links)
        state.pair_searches.append(search)
        reserved = min(self.group_tests.limit(SET, len(ring)), BUDGET_SHARE * orders.budget)
        has_failed = False
        while state.seconds_left > reserved:
            yield from restart_torch_workers(state)
            self._drop_lost(search)
            pairs = search.next_round()
            if not pairs:
                break
            label = f"tests of pairs, round {state.rounds + 1}"
            tests = yield from self.group_tests.run(label, PAIR, pairs)
            state.rounds += 1
            search.take(tests)
            has_failed = has_failed or any(test.passed is False for test in tests)
            if has_failed and state.swept_after < 0 and state.seconds_left < reserved + port_sweep.SECONDS:
                yield from port_sweep.rounds(state)  # blocked ports may be why the tests take so long
                for node in explain(state).blocked:
                    search.drop(node)
        else:
            state.notice(_ENDED)
        self._drop_lost(search)

    def _drop_lost(self, search: Search) -> None:
        for node in self.state.nodes.values():
            if node.gone:
                search.drop(node.node)
                self.state.explanation = None


def restart_torch_workers(state: SessionState) -> Waits:
    """Restart the torch workers that ended."""
    nodes = state.nodes.values()
    stopped = [node for node in nodes if node.torch_worker is None and node.first_torch_worker]
    stopped = [node for node in stopped if not explain(state).is_unfit(node.node)]
    for node in stopped:
        state.ask(node.node, state.torch_task, START_SECONDS)
    if stopped:
        yield (StartTorch,)


# --- the whole set ---


class WholeSet:
    def __init__(self, pairs: PairRounds) -> None:
        self._state, self._group_tests, self._pairs = pairs.state, pairs.group_tests, pairs

    def rounds(self) -> Waits:
        """Test the chosen nodes. If the test fails, search the cause and test the nodes that remain."""
        state = self._state
        for _ in range(MOST_TRIES):
            yield from restart_torch_workers(state)
            nodes = self._nodes()
            if not nodes or state.seconds_left < 1.0:
                return
            test = yield from self._test(nodes)
            if test.passed is None:
                continue
            before = explain(state).choice().world
            yield from self._find_slow(test) if test.passed else self._find_cause(test)
            passed = any(test.passed for test in state.log.of(GroupTest) if test.kind == SET)
            if explain(state).choice().world == before or (passed and not test.passed):
                return

    def _nodes(self) -> tuple[int, ...]:
        """Return the chosen nodes, even if they are too few to train; () if a node cannot be tested."""
        nodes = explain(self._state).choice().nodes
        return nodes if all(self._state.nodes[node].has_torch for node in nodes) else ()

    def _test(self, nodes: tuple[int, ...]) -> Generator[tuple[type, ...], None, GroupTest]:
        (test,) = yield from self._group_tests.run(f"the whole set of {len(nodes)}", SET, [nodes])
        return test

    def _find_slow(self, test: GroupTest) -> Waits:
        """Search slow nodes with tests of pairs, unless they ran. Then search slow groups of a slow set."""
        state = self._state
        pairs_were_timed = bool(state.pair_searches)
        below = self._is_below_floor(test)
        if not below and (pairs_were_timed or not (yield from self._halves_differ(test.nodes))):
            return
        before = explain(state).choice().world
        if not pairs_were_timed:
            yield from self._pairs.rounds()
        if explain(state).choice().world == before and self._is_below_floor(test):
            yield from self._find_slow_groups(test.nodes)

    def _is_below_floor(self, test: GroupTest) -> bool:
        floor, _ = expected_bandwidth.floor_of(self._state, test.nodes)
        return test.rate is not None and test.rate < floor

    def _halves_differ(self, nodes: tuple[int, ...]) -> Generator[tuple[type, ...], None, bool]:
        """Test both halves of the set and return whether one is slower than the other."""
        state, middle = self._state, len(nodes) // 2
        if len(nodes) < 2 * SMALLEST_GROUP or state.seconds_left < self._group_tests.limit(HALF, middle):
            return False
        halves = (nodes[:middle], nodes[middle:])
        tests = yield from self._group_tests.run("parts of the set: 2", HALF, halves)
        rates = [test.rate for test in tests if test.passed and test.rate is not None]
        limits = for_backend(state.limits, state.backend)
        return len(rates) == len(tests) and min(rates) < max(rates) * (1 - limits.slow_few)

    def _find_slow_groups(self, nodes: tuple[int, ...]) -> Waits:
        """Report the groups of the set below the floor: test halves, then the halves of slow halves."""
        state = self._state
        floor, _ = expected_bandwidth.floor_of(state, nodes)
        search = slow_groups(nodes, floor)
        groups_below: tuple[tuple[int, ...], ...] = ()
        try:
            groups = next(search)
            while state.seconds_left > 1.0:
                label = f"parts of the set: {len(groups)}"
                groups = search.send((yield from self._group_tests.run(label, HALF, groups)))
        except StopIteration as end:
            groups_below = end.value
        for group in groups_below:
            state.observe(SlowGroup(group, floor))

    def _find_cause(self, failed: GroupTest) -> Waits:
        """Search why the whole set failed: test untested links, then the set once more, then its parts."""
        state = self._state
        for rounds in self._searches(failed):
            before = explain(state).choice().world
            yield from rounds
            if explain(state).choice().world != before:
                return
        yield from restart_torch_workers(state)
        nodes = self._nodes()
        again = (yield from self._test(nodes)) if nodes == failed.nodes else failed
        if again.passed:
            state.notice(f"the whole set failed once ({failed.wrong or failed.why}) and passed when repeated")
        elif again.passed is False:
            yield from self._find_nodes(again)

    def _searches(self, failed: GroupTest) -> Iterator[Waits]:
        """Yield the searches for a faulty node or link, in their order."""
        count = len(failed.nodes)
        if count < 2:
            return
        if not self._state.pair_searches:
            yield self._pairs.rounds()
        yield network_phase.everyone(self._state)
        # In the ring, each node met two others.
        has_untested = count - 1 > 2 and not self._pairs.every
        if has_untested and self._group_tests.has_time_for(count):
            yield PairRounds(self._group_tests, every=True).rounds()

    def _find_nodes(self, failed: GroupTest) -> Waits:
        """Search the nodes that make the set fail."""
        state = self._state
        search = GroupSearch(failed.nodes, state.limits)
        state.group_searches.append((failed, search))
        while len(failed.nodes) > 2 and state.seconds_left > self._group_tests.limit(HALF, len(failed.nodes)):
            groups = search.next_round()
            if not groups or any(state.nodes[node].gone for node in failed.nodes):
                break
            yield from restart_torch_workers(state)
            label = f"parts of the set that failed: {len(groups)}"
            search.take((yield from self._group_tests.run(label, HALF, groups)))
