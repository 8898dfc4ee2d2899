"""Run the collective rounds: matrix products, pairs, the whole set and its parts."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight import registry
from clusterrun.preflight.causes.groups import GroupSearch
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.causes.rates import levels
from clusterrun.preflight.causes.slow_parts import slow_parts
from clusterrun.preflight.observations import GroupTest, Pair
from clusterrun.preflight.session import (
    expected_bandwidth,
    network_phase,
    pair_findings,
    port_sweep,
    transport_findings,
)
from clusterrun.preflight.session.group_tests import HALF, PAIR, PRODUCT, SET, GroupTests
from clusterrun.preflight.session.precedence import OF_PAIRS
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import StartTorch
from clusterrun.preflight.thresholds import for_backend

Waits = Iterator[tuple[type, ...]]

# The share of the budget that is reserved for the whole set, within these limits in seconds.
LEAST_SET_SECONDS = 6.0
MOST_SET_SECONDS = 15.0
SET_SHARE = 0.25
_PRODUCTS_AGAIN = 2
_MOST_SETS = 4
_RESTART_SECONDS = 20.0
# Half of a smaller set may be a single node, which does not use the network.
LEAST_HALVES = 4
# The halves are tested only if this much time remains.
LEAST_HALVES_SECONDS = 6.0
_SLOW_PART = "look at the links between these and the others: clusterrun check --all-pairs"
_ENDED = "the budget ended the pair rounds before all was known; --preflight-budget gives more"
# All nodes of a ring of this size are neighbours.
_RING = 3


# --- products ---


def products(state: SessionState, group_tests: GroupTests) -> Waits:
    """Run a matrix product on all nodes in parallel. Repeat slow and lost products while other nodes rest."""
    untested = [node.node for node in state.present() if node.torch_ready]
    for _ in range(1 + _PRODUCTS_AGAIN):
        if not untested:
            break
        yield from group_tests.run("matrix products", PRODUCT, [(node,) for node in untested])
        yield from restart_torch_workers(state)
        products_by_name = {
            node.name: node.product for node in state.nodes.values() if node.product is not None
        }
        slow = registry.slow_products(state.needs, products_by_name)
        ready = (node for node in state.present() if node.torch_ready)
        untested = [node.node for node in ready if node.name in slow or node.product is None]
    state.write("torch worker", pair_findings.of_ends(state))


# --- pairs ---


class PairTests:
    """The pair rounds of a check. Their findings can be written at any time."""

    def __init__(self, group_tests: GroupTests, every: bool = False) -> None:
        self.state, self.group_tests = group_tests.state, group_tests
        self.every = every or group_tests.state.orders.preflight.all_pairs
        self.search: Search | None = None
        self._last: dict[frozenset[int], GroupTest] = {}
        self._ways: dict[tuple[int, int], float] = {}

    def rounds(self) -> Waits:
        """Run rounds until the search is finished, or only the time for the whole set remains."""
        state = self.state
        yield from restart_torch_workers(state)
        elsewhere = state.elsewhere()
        able = [node.node for node in state.present() if node.torch_ready and node.node not in elsewhere]
        ring = [node for node in state.choice().nodes if node in able]
        if len(able) < 2:
            return
        spares = [node for node in able if node not in ring]
        orders = state.orders.preflight
        limits = for_backend(state.limits, state.backend)
        search = self.search = Search(ring, spares, orders.confirm, self.every, limits, self._distance)
        reserved = min(MOST_SET_SECONDS, max(LEAST_SET_SECONDS, SET_SHARE * orders.budget), orders.budget / 2)
        while state.seconds_left > reserved:
            yield from restart_torch_workers(state)
            self._drop_lost(search)
            pairs = search.next_round()
            if not pairs:
                break
            yield from self._round(search, pairs)
            self.write()
            has_failed = any(test.passed is False for test in self._last.values())
            if has_failed and state.swept_after < 0 and state.seconds_left < reserved + port_sweep.SECONDS:
                yield from port_sweep.rounds(state)  # blocked ports may be why the tests take so long
        else:
            state.notice(_ENDED)
        self._drop_lost(search)
        self.write()

    def _distance(self, ends: tuple[int, int]) -> int:
        """Return how many levels of switches a link crosses, as far as the scheduler knows."""
        a, b = (self.state.nodes[node].switches for node in ends)
        return levels(a, b)

    def _drop_lost(self, search: Search) -> None:
        """Drop nodes that were lost or whose ports are blocked. A node that pairs found unfit stays."""
        for node in self.state.nodes.values():
            has_no_torch = node.torch_worker is not None and not node.torch_worker.up
            if node.gone or has_no_torch or node.failed_in("port sweep"):
                search.drop(node.node)

    def _round(self, search: Search, pairs: tuple[Pair, ...]) -> Waits:
        cut = [pair for pair in pairs if self.state.is_cut(pair.a, pair.b)]
        whole = [pair for pair in pairs if pair not in cut]
        label = f"tests of pairs, round {self.state.rounds + 1}"
        tests = yield from self.group_tests.run(label, PAIR, whole)
        self.state.rounds += 1
        for test in tests:
            key = frozenset(test.nodes)
            if test.passed is False or key not in self._last:
                self._last[key] = test
            for node, rate in test.ways:
                a, b = test.nodes
                way = (node, b if node == a else a)
                self._ways[way] = max(rate, self._ways.get(way, 0.0))
        search.take(tests + [GroupTest(pair, False) for pair in cut])

    def write(self) -> None:
        for pairs in self._findings():
            pairs.write(OF_PAIRS[self.every])
        pair_findings.of_rails(self.state)

    def passing(self) -> Iterator[str]:
        for pairs in self._findings():
            yield from pairs.passing()

    def _findings(self) -> Iterator[pair_findings.PairFindings]:
        """Yield the findings of the search, if it began."""
        if self.search is not None:
            yield pair_findings.PairFindings(self.state, self.search.result(), self._last, self._ways)


def restart_torch_workers(state: SessionState) -> Waits:
    """Restart the torch workers that ended."""
    stopped = [
        node
        for node in state.present()
        if node.torch_worker is None and node.first_torch_worker and not node.unfit
    ]
    for node in stopped:
        state.ask(node.node, state.torch_task, _RESTART_SECONDS)
    if stopped:
        yield (StartTorch,)


# --- the whole set ---


class WholeSet:
    def __init__(self, pairs: PairTests) -> None:
        self._state, self._group_tests, self._pairs = pairs.state, pairs.group_tests, pairs

    def rounds(self) -> Waits:
        """Test the chosen nodes. If the test fails, search the cause and test the nodes that remain."""
        state = self._state
        for _ in range(_MOST_SETS):
            yield from restart_torch_workers(state)
            nodes = self._nodes()
            if not nodes or state.seconds_left < 1.0:
                return
            test = yield from self._test(nodes)
            if test.passed is None:
                continue
            before = state.choice().world
            yield from self._hasten(test) if test.passed else self._look(test)
            if state.choice().world == before or (state.set_passed and not test.passed):
                return

    def _nodes(self) -> tuple[int, ...]:
        """Return the chosen nodes, even if they are too few to train; () if a node cannot be tested."""
        nodes = self._state.choice().nodes
        return nodes if all(self._state.nodes[node].torch_ready for node in nodes) else ()

    def _test(self, nodes: tuple[int, ...]) -> Generator[tuple[type, ...], None, GroupTest]:
        (test,) = yield from self._group_tests.run(f"the whole set of {len(nodes)}", SET, [nodes])
        return test

    def _passed(self, test: GroupTest) -> None:
        self._state.set_passed = True
        of_rate, of_network = expected_bandwidth.of_set, transport_findings.of_set
        self._state.write("set", [*of_rate(self._state, test), *of_network(self._state, test)])

    def _hasten(self, test: GroupTest) -> Waits:
        """Search slow nodes with tests of pairs, unless they ran. Then search slow parts of a slow set."""
        state, pairs_were_timed = self._state, self._pairs.search is not None
        self._passed(test)
        below = self._is_below_floor(test)
        if not below and (pairs_were_timed or not (yield from self._halves_differ(test.nodes))):
            return
        before = state.choice().world
        if not pairs_were_timed:
            yield from self._pairs.rounds()
        if state.choice().world == before and self._is_below_floor(test):
            yield from self._slow_parts(test.nodes)

    def _is_below_floor(self, test: GroupTest) -> bool:
        floor, _ = expected_bandwidth.floor_of(self._state, test.nodes)
        return test.rate is not None and test.rate < floor

    def _halves_differ(self, nodes: tuple[int, ...]) -> Generator[tuple[type, ...], None, bool]:
        """Test both halves of the set and return whether one is slower than the other."""
        state, middle = self._state, len(nodes) // 2
        if len(nodes) < LEAST_HALVES or state.seconds_left < LEAST_HALVES_SECONDS:
            return False
        halves = (nodes[:middle], nodes[middle:])
        tests = yield from self._group_tests.run("parts of the set: 2", HALF, halves)
        rates = [test.rate for test in tests if test.passed and test.rate is not None]
        limits = for_backend(state.limits, state.backend)
        return len(rates) == len(tests) and min(rates) < max(rates) * (1 - limits.slow_few)

    def _slow_parts(self, nodes: tuple[int, ...]) -> Waits:
        """Report the parts of the set below the floor: test halves, then the halves of slow halves."""
        state = self._state
        floor, _ = expected_bandwidth.floor_of(state, nodes)
        search = slow_parts(nodes, floor)
        slow_groups: tuple[tuple[int, ...], ...] = ()
        try:
            groups = next(search)
            while state.seconds_left > 1.0:
                label = f"parts of the set: {len(groups)}"
                groups = search.send((yield from self._group_tests.run(label, HALF, groups)))
        except StopIteration as end:
            slow_groups = end.value
        slow = f"are slow together, twice (limit {floor:.3g} GB/s); the other parts are not"
        findings = (
            Finding("set", Grade.WARN, f"{state.names(group)} {slow}", _SLOW_PART) for group in slow_groups
        )
        state.write("slow parts", [NodeFinding(None, finding) for finding in findings])

    def _look(self, failed: GroupTest) -> Waits:
        """Search why the whole set failed: test untested links, then the set once more, then its parts."""
        state = self._state
        for rounds in self._searches(failed):
            before = state.choice().world
            yield from rounds
            if state.choice().world != before:
                return
        yield from restart_torch_workers(state)
        nodes = self._nodes()
        again = (yield from self._test(nodes)) if nodes == failed.nodes else failed
        if again.passed:
            state.notice(f"the whole set failed once ({failed.wrong or failed.why}) and passed when repeated")
            self._passed(again)
        elif again.passed is False:
            yield from self._parts(again)

    def _searches(self, failed: GroupTest) -> Iterator[Waits]:
        """Yield the searches for a faulty node or link, in their order."""
        count = len(failed.nodes)
        if count < 2:
            return
        if self._pairs.search is None:
            yield self._pairs.rounds()
        yield network_phase.everyone(self._state)
        if not self._pairs.every and count > _RING and self._group_tests.has_time_for(count):
            yield PairTests(self._group_tests, every=True).rounds()

    def _parts(self, failed: GroupTest) -> Waits:
        """Search the nodes that make the set fail, and write the findings after each round."""
        state = self._state
        search = GroupSearch(failed.nodes)
        pair_findings.of_set(state, failed, search.result(), True)
        while len(failed.nodes) > 2 and state.seconds_left > self._group_tests.limit(HALF, len(failed.nodes)):
            groups = search.next_round()
            if not groups or any(state.nodes[node].gone for node in failed.nodes):
                break
            yield from restart_torch_workers(state)
            label = f"parts of the set that failed: {len(groups)}"
            search.take((yield from self._group_tests.run(label, HALF, groups)))
            pair_findings.of_set(state, failed, search.result(), bool(search.next_round()))
