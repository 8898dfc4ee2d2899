"""The collective rounds: products, pairs, the whole set and its parts; pure."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight import registry
from clusterrun.preflight.causes.groups import GroupSearch
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.causes.rates import levels
from clusterrun.preflight.causes.slow_parts import slow_parts
from clusterrun.preflight.observations import GroupTest, Pair
from clusterrun.preflight.session import expected_bandwidth, network_phase, pair_findings, port_sweep
from clusterrun.preflight.session.group_tests import HALF, PAIR, PRODUCT, SET, GroupTests
from clusterrun.preflight.session.precedence import OF_PAIRS
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import StartTorch
from clusterrun.preflight.thresholds import for_backend

Waits = Iterator[tuple[type, ...]]

LEAST_SET_SECONDS = 6.0
"""What is kept of the budget for the whole set, at least and at most, and as a part."""
MOST_SET_SECONDS = 15.0
SET_SHARE = 0.25
_PRODUCTS_AGAIN = 2
_MOST_SETS = 4
_WARM_AGAIN_SECONDS = 20.0
LEAST_HALVES = 4
"""Of fewer nodes one half would be a single node, which says nothing of the network."""
LEAST_HALVES_SECONDS = 6.0
"""With less time left the halves are not tested."""
_SLOW_PART = "look at the links between these and the others: clusterrun check --all-pairs"
_ENDED = "the budget ended the pair rounds before all was known; --preflight-budget gives more"
_RING = 3
"""In a ring of so many nodes every two are neighbours."""


# --- products ---


def products(state: SessionState, trials: GroupTests) -> Waits:
    """One matrix product on every node at once; the slow and the lost ones again, when the others rest."""
    wanted = [one.node for one in state.present() if one.torch_ready]
    for _ in range(1 + _PRODUCTS_AGAIN):
        if not wanted:
            break
        yield from trials.made("matrix products", PRODUCT, [(node,) for node in wanted])
        yield from warm_again(state)
        known = {one.name: one.product for one in state.subjects.values() if one.product is not None}
        slow = registry.slow_products(state.asked, known)
        ready = (one for one in state.present() if one.torch_ready)
        wanted = [one.node for one in ready if one.name in slow or one.product is None]
    state.write("torch worker", pair_findings.of_ends(state))


# --- pairs ---


class PairTests:
    """The pair rounds of one examination; what they found can be written down at any time."""

    def __init__(self, trials: GroupTests, every: bool = False) -> None:
        self.case, self.trials = trials.case, trials
        self.every = every or trials.case.orders.preflight.all_pairs
        self.search: Search | None = None
        self._last: dict[frozenset[int], GroupTest] = {}
        self._ways: dict[tuple[int, int], float] = {}

    def rounds(self) -> Waits:
        """Ask the search for rounds until it knows, or the time for the whole set has come."""
        case = self.case
        yield from warm_again(case)
        elsewhere = case.elsewhere()
        able = [one.node for one in case.present() if one.torch_ready and one.node not in elsewhere]
        ring = [node for node in case.choice().nodes if node in able]
        if len(able) < 2:
            return
        spares = [node for node in able if node not in ring]
        orders = case.orders.preflight
        limits = for_backend(case.limits, case.backend)
        search = self.search = Search(ring, spares, orders.confirm, self.every, limits, self._distance)
        kept = min(MOST_SET_SECONDS, max(LEAST_SET_SECONDS, SET_SHARE * orders.budget), orders.budget / 2)
        while case.left > kept:
            yield from warm_again(case)
            self._drop_lost(search)
            pairs = search.next_round()
            if not pairs:
                break
            yield from self._round(search, pairs)
            self.write()
            has_failed = any(test.passed is False for test in self._last.values())
            if has_failed and case.swept_after < 0 and case.left < kept + port_sweep.SECONDS:
                yield from port_sweep.rounds(case)  # blocked ports may be why the tests take so long
        else:
            case.notice(_ENDED)
        self._drop_lost(search)
        self.write()

    def _distance(self, ends: tuple[int, int]) -> int:
        """Return how many levels of switches a link crosses, as far as the scheduler knows."""
        a, b = (self.case.subjects[node].switches for node in ends)
        return levels(a, b)

    def _drop_lost(self, search: Search) -> None:
        """Drop nodes that were lost or whose ports are blocked. A node that pairs found unfit stays."""
        for node in self.case.subjects.values():
            has_no_torch = node.warm is not None and not node.warm.up
            if node.gone or has_no_torch or node.failed_in("port sweep"):
                search.drop(node.node)

    def _round(self, search: Search, pairs: tuple[Pair, ...]) -> Waits:
        cut = [pair for pair in pairs if self.case.is_cut(pair.a, pair.b)]
        whole = [pair for pair in pairs if pair not in cut]
        done = yield from self.trials.made(f"tests of pairs, round {self.case.rounds + 1}", PAIR, whole)
        self.case.rounds += 1
        for trial in done:
            key = frozenset(trial.nodes)
            if trial.passed is False or key not in self._last:
                self._last[key] = trial
            for node, rate in trial.ways:
                a, b = trial.nodes
                way = (node, b if node == a else a)
                self._ways[way] = max(rate, self._ways.get(way, 0.0))
        search.take(done + [GroupTest(one, False) for one in cut])

    def write(self) -> None:
        for said in self._said():
            said.write(OF_PAIRS[self.every])

    def passing(self) -> Iterator[str]:
        for said in self._said():
            yield from said.passing()

    def _said(self) -> Iterator[pair_findings.PairFindings]:
        """What the search found, where there was one."""
        if self.search is not None:
            yield pair_findings.PairFindings(self.case, self.search.result(), self._last, self._ways)


def warm_again(state: SessionState) -> Waits:
    cold = [one for one in state.present() if one.warm is None and one.first_torch_worker and not one.unfit]
    for one in cold:
        state.ask(one.node, state.warm_task, _WARM_AGAIN_SECONDS)
    if cold:
        yield (StartTorch,)


# --- the whole set ---


class WholeSet:
    def __init__(self, pairs: PairTests) -> None:
        self._case, self._trials, self._pairs = pairs.case, pairs.trials, pairs

    def rounds(self) -> Waits:
        """Test those who would train; where it fails find out why, and test those who are then left."""
        case = self._case
        for _ in range(_MOST_SETS):
            yield from warm_again(case)
            nodes = self._nodes()
            if not nodes or case.left < 1.0:
                return
            trial = yield from self._test(nodes)
            if trial.passed is None:
                continue
            before = case.choice().world
            yield from self._hasten(trial) if trial.passed else self._look(trial)
            if case.choice().world == before or (case.set_passed and not trial.passed):
                return

    def _nodes(self) -> tuple[int, ...]:
        """Who would train, where all of them can be tested; also where they are too few, for the report."""
        nodes = self._case.choice().nodes
        return nodes if all(self._case.subjects[node].torch_ready for node in nodes) else ()

    def _test(self, nodes: tuple[int, ...]) -> Generator[tuple[type, ...], None, GroupTest]:
        (trial,) = yield from self._trials.made(f"the whole set of {len(nodes)}", SET, [nodes])
        return trial

    def _passed(self, trial: GroupTest) -> None:
        self._case.set_passed = True
        self._case.write("set", expected_bandwidth.of_set(self._case, trial))

    def _hasten(self, trial: GroupTest) -> Waits:
        """Where somebody may be slow: pairs, unless they were timed; then the parts of a set too slow."""
        case, known = self._case, self._pairs.search is not None
        self._passed(trial)
        below = self._is_below_floor(trial)
        if not below and (known or not (yield from self._halves_differ(trial.nodes))):
            return
        before = case.choice().world
        if not known:
            yield from self._pairs.rounds()
        if case.choice().world == before and self._is_below_floor(trial):
            yield from self._slow_parts(trial.nodes)

    def _is_below_floor(self, trial: GroupTest) -> bool:
        floor, _ = expected_bandwidth.floor_of(self._case, trial.nodes)
        return trial.rate is not None and trial.rate < floor

    def _halves_differ(self, nodes: tuple[int, ...]) -> Generator[tuple[type, ...], None, bool]:
        """Where no pair was timed: whether one half of the set is slower than the other."""
        case, middle = self._case, len(nodes) // 2
        if len(nodes) < LEAST_HALVES or case.left < LEAST_HALVES_SECONDS:
            return False
        done = yield from self._trials.made("parts of the set: 2", HALF, (nodes[:middle], nodes[middle:]))
        rates = [one.rate for one in done if one.passed and one.rate is not None]
        limits = for_backend(case.limits, case.backend)
        return len(rates) == len(done) and min(rates) < max(rates) * (1 - limits.slow_few)

    def _slow_parts(self, nodes: tuple[int, ...]) -> Waits:
        """Which parts of it are below the floor as well: both halves at once, then the halves of those."""
        case = self._case
        floor, _ = expected_bandwidth.floor_of(case, nodes)
        search = slow_parts(nodes, floor)
        found: tuple[tuple[int, ...], ...] = ()
        try:
            groups = next(search)
            while case.left > 1.0:
                label = f"parts of the set: {len(groups)}"
                groups = search.send((yield from self._trials.made(label, HALF, groups)))
        except StopIteration as end:
            found = end.value
        slow = f"are slow together, twice (limit {floor:.3g} GB/s); the other parts are not"
        said = (Finding("set", Grade.WARN, f"{case.names(one)} {slow}", _SLOW_PART) for one in found)
        case.write("slow parts", [NodeFinding(None, one) for one in said])

    def _look(self, failed: GroupTest) -> Waits:
        """Why the whole set failed: links that no ring tested, then the set once more, then its parts."""
        case = self._case
        for rounds in self._searches(failed):
            before = case.choice().world
            yield from rounds
            if case.choice().world != before:
                return
        yield from warm_again(case)
        nodes = self._nodes()
        again = (yield from self._test(nodes)) if nodes == failed.nodes else failed
        if again.passed:
            case.notice(f"the whole set failed once ({failed.wrong or failed.why}) and passed when repeated")
            self._passed(again)
        elif again.passed is False:
            yield from self._parts(again)

    def _searches(self, failed: GroupTest) -> Iterator[Waits]:
        """What may find a node or link to blame, in the order in which it is tried."""
        count = len(failed.nodes)
        if count < 2:
            return
        if self._pairs.search is None:
            yield self._pairs.rounds()
        yield network_phase.everyone(self._case)
        if not self._pairs.every and count > _RING and self._trials.has_time_for(count):
            yield PairTests(self._trials, every=True).rounds()

    def _parts(self, failed: GroupTest) -> Waits:
        """Which nodes keep the set from passing; what is known is written down after each round."""
        case = self._case
        search = GroupSearch(failed.nodes)
        pair_findings.of_set(case, failed, search.result(), True)
        while len(failed.nodes) > 2 and case.left > self._trials.limit(HALF, len(failed.nodes)):
            groups = search.next_round()
            if not groups or any(case.subjects[node].gone for node in failed.nodes):
                break
            yield from warm_again(case)
            label = f"parts of the set that failed: {len(groups)}"
            search.take((yield from self._trials.made(label, HALF, groups)))
            pair_findings.of_set(case, failed, search.result(), bool(search.next_round()))
