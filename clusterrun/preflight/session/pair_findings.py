"""Describe what tests of pairs and of larger groups show, with numbers and remedies. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes.groups import GroupsResult
from clusterrun.preflight.causes.pair_search import Evidence, SearchResult
from clusterrun.preflight.causes.rails import slow_rails
from clusterrun.preflight.observations import GroupTest, SlowGroup
from clusterrun.preflight.session import expected_bandwidth, partition_findings, transport_findings
from clusterrun.preflight.session.explanation import Explanation
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import PAIR, SET
from clusterrun.preflight.thresholds import for_backend, median_of

_BROKEN_GPU = "drain the node; then look at its GPUs (dcgmi diag -r 3) and network ports (ibstat, ip -s link)"
_BROKEN = "drain the node; then look at its network ports (ip -s link, ethtool -S) and its kernel log (dmesg)"
_WRONG = "drain the node: what it computes or sends is wrong without any error; have it replaced"
_SLOW_GPU = "look at its ports and PCIe: ibstat, ethtool, nvidia-smi -q -d PCIE; and at who else uses them"
_SLOW = "look at its network ports (ethtool, ip -s link), its load (top), and who else uses them"
# GB/s. Below it is a port that fell back to 100 Mb/s, or a limited network. No network for training is.
_LEAST_RATE = 0.02
_ALL_SLOW = "all are slow alike: look at the interface that is used, at NCCL_DEBUG=INFO, and at the switches"
_LINK = "look at cables and switch ports between {} and {}"
_THIRD = "give the check a node more to compare with: --spares 1"
_RAIL = (
    "look at the port of GPU {} (nvidia-smi topo -m names it; ibstat, mlxlink, nvidia-smi -q -d PCIE) and at "
    "its cable and switch"
)
_SLOW_PART = "look at the links between these and the others: clusterrun check --all-pairs"
_SET = "compare with NCCL_NVLS_ENABLE=0, NCCL_COLLNET_ENABLE=0 and fewer nodes; look at the spine switches"
# Replaces the reason of a test that failed without one.
NO_ANSWER = "no answer within the limit"


# --- tests of pairs ---


class PairTests:
    """The tests of pairs, by pair and by way.

    ``last``: the last test of a pair, or its last that failed. ``ways``: (from, to): GB/s.
    """

    def __init__(self, tests: Sequence[GroupTest]) -> None:
        self.last: dict[frozenset[int], GroupTest] = {}
        self.ways: dict[tuple[int, int], float] = {}
        for test in tests:
            if test.kind != PAIR:
                continue
            key = frozenset(test.nodes)
            if test.passed is False or key not in self.last:
                self.last[key] = test
            for node, rate in test.ways:
                a, b = test.nodes
                way = (node, b if node == a else a)
                self.ways[way] = max(rate, self.ways.get(way, 0.0))

    def across(self, parts: Sequence[Sequence[int]]) -> tuple[int, list[float]]:
        """Return how many links between the parts failed, and the rates of the others."""
        part_of = {node: number for number, part in enumerate(parts) for node in part}
        failed, rates = 0, []
        for nodes, test in self.last.items():
            if len({part_of[node] for node in nodes if node in part_of}) > 1:
                failed += test.passed is False
                if test.passed and test.rate is not None:
                    rates.append(test.rate)
        return failed, rates

    def failure(self, evidence: Evidence) -> str:
        """Return why a test of this node or link failed."""
        nodes = evidence.nodes
        keys = [frozenset(nodes)] if len(nodes) == 2 else [frozenset((*nodes, b)) for b in evidence.against]
        tests = (self.last[key] for key in keys if key in self.last)
        return next(filter(None, (test.failure for test in tests)), NO_ANSWER)


def of_pairs(state: SessionState, explanation: Explanation) -> None:
    tests = PairTests(state.log.of(GroupTest))
    is_overloaded = any(test.starved for test in state.log.of(GroupTest))
    least = 0.0 if is_overloaded else _LEAST_RATE
    for search in state.pair_searches:
        result = search.result()
        for evidence in result.evidence:
            if evidence.finding_kind in ("flaky", "unproven"):
                continue
            # Blocked ports explain tests that failed, but no wrong sum and no low rate.
            explained = () if evidence.wrong or evidence.finding_kind == "slow" else explanation.blocked
            if len(evidence.nodes) == 2:
                explanation.add_links([_of_link(state, evidence, tests)], of_pairs=True)
            elif len(evidence.nodes) == 1 and evidence.nodes[0] not in explained:
                explanation.add(evidence.nodes[0], _of_node(state, evidence, tests))
        median, floor = result.median, state.thresholds.pair_floor or least
        if median is not None and median < floor:
            message = f"pairs reach {median:.3g} GB/s, the median (limit {floor:.3g}: pair_floor)"
            explanation.network.append(Finding("bandwidth", Grade.WARN, message, _ALL_SLOW))
        if result.parts:
            failed, _ = tests.across(result.parts)
            observed = f"{failed} tests of two nodes failed, none passed"
            explanation.network.append(partition_findings.of_parts(state, result.parts, observed))
        if result.slow_parts:
            _, rates = tests.across(result.slow_parts)
            inside, between = result.median or 0.0, median_of(rates or [0.0])
            finding = partition_findings.of_slow(state, result.slow_parts, inside, between)
            explanation.network.append(finding)


def notices(state: SessionState, result: SearchResult) -> Iterator[str]:
    """Yield notices that blame nobody: flaky links, nodes not proven to be slow, slower levels of links."""
    for evidence in result.evidence:
        names = state.names(evidence.nodes)
        if evidence.finding_kind == "flaky":
            yield f"{names}: {evidence.failed} of {evidence.tests} tests failed, the others passed"
        elif evidence.finding_kind == "unproven":
            yield (
                f"{names} may be slow: {_rate(evidence)}, in {evidence.tests} tests; they waited for busy "
                "processors, or are too few to be sure: check again when the nodes are idle"
            )
    fastest = max((level.median for level in result.levels), default=0.0)
    for level in result.levels:
        if level.factor > 1:
            plural = "s" if level.levels > 1 else ""
            alone = "; there is only one, so whether it is slow cannot be told" if level.links == 1 else ""
            yield (
                f"the links over {level.levels} level{plural} of switches reach {level.median:.3g} GB/s, "
                f"the fastest kind {fastest:.3g}: compared with their like{alone}"
            )


def _of_link(state: SessionState, evidence: Evidence, tests: PairTests) -> LinkReport:
    """Return the report on a link. The slower way of a slow link goes from the first node to the second."""
    a, b = evidence.nodes
    direction, message = "both", f"{evidence.failed} of {evidence.tests} tests failed"
    if evidence.finding_kind == "slow":
        if tests.ways.get((b, a), 0.0) < tests.ways.get((a, b), 0.0):
            a, b = b, a
        forward, back = tests.ways.get((a, b)), tests.ways.get((b, a))
        direction = "a->b" if forward and back and forward < back / 2 else "both"
        message = _slow(evidence)
    elif evidence.finding_kind == "broken":
        message += f", both nodes pass with others: {tests.failure(evidence)}"
    else:
        message += "; whether the link or a node is to blame is not known"
    first, second = state.nodes[a].name, state.nodes[b].name
    return LinkReport(first, second, direction, evidence.grade, message, _LINK.format(first, second))


def _of_node(state: SessionState, evidence: Evidence, tests: PairTests) -> Finding:
    if evidence.finding_kind == "slow":
        return Finding("bandwidth", evidence.grade, _slow(evidence), _SLOW_GPU if state.has_gpus else _SLOW)
    why, failed = tests.failure(evidence), f"{evidence.failed} of {evidence.tests} tests failed"
    if evidence.finding_kind == "undetermined":
        message = f"{failed} ({why}); which node is at fault is not known"
        return Finding("pair", Grade.UNDETERMINED, message, _THIRD)
    if evidence.wrong:
        message = f"wrong sums in {evidence.wrong} of {evidence.tests} tests: {why}"
        return Finding("sums", evidence.grade, message, _WRONG)
    partners = state.names(dict.fromkeys(evidence.against)) or "all"
    message = f"{failed}, with {partners}: {why}"
    return Finding("pair", evidence.grade, message, remedy_of(state, why))


def of_rails(state: SessionState, explanation: Explanation) -> None:
    """Report slow rails. Ranks on processors share one network, so they have no rails."""
    thresholds = for_backend(state.thresholds, state.backend)
    slow = slow_rails(state.quantities.rails, thresholds) if state.backend == "nccl" else []
    for rail in slow:
        verb, outlier = "sends" if rail.is_sending else "receives", rail.outlier
        median = f"{outlier.share:.0%} of the median {outlier.median:.3g}"
        rate = f"{outlier.value:.3g} GB/s, {median} (limit {outlier.limit:.3g})"
        name = state.nodes[rail.node].name
        remedy = _RAIL.format(rail.rail)
        if rail.partner is None:
            message = f"rail {rail.rail} (GPU {rail.rail} and its network port) {verb} {rate}"
            explanation.add(rail.node, Finding("rails", Grade.WARN, message, remedy))
        else:
            partner = state.nodes[rail.partner].name
            message = f"rail {rail.rail}: {rate}; either end may be at fault"
            explanation.add_links([LinkReport(name, partner, "a->b", Grade.WARN, message, remedy)])


def remedy_of(state: SessionState, why: str, otherwise: str = "") -> str:
    """Return the remedy of a known error message, else ``otherwise``, else the remedy of a broken node."""
    known_error = meaning(why)
    if known_error is not None and not known_error.consequence:
        return f"{known_error.cause}: {known_error.remedy}"
    return otherwise or (_BROKEN_GPU if state.has_gpus else _BROKEN)


def _slow(evidence: Evidence) -> str:
    return f"{_rate(evidence)}, in {evidence.failed} of {evidence.tests} tests"


def _rate(evidence: Evidence) -> str:
    rate, limit, median = evidence.rate or 0.0, evidence.limit or 0.0, evidence.median or 0.0
    share = f", {rate / median:.0%} of the median {median:.3g}" if median else ""
    return f"at best {rate:.3g} GB/s{share} (limit {limit:.3g})"


def of_torch_workers(state: SessionState, explanation: Explanation) -> None:
    """Report nodes whose torch worker ended repeatedly by itself. A single end is no fault."""
    for node in state.nodes.values():
        if len(node.ends) > 1:
            message = f"its Python ended {len(node.ends)} times during a matrix product: {node.ends[-1]}"
            finding = Finding("warm-process", Grade.FAIL, message, remedy_of(state, node.ends[-1]))
            explanation.add(node.node, finding)


# --- tests of larger groups ---


def of_groups(state: SessionState, explanation: Explanation) -> None:
    """Report nodes that make larger groups fail. Nodes that only an earlier search tested stay unfit."""
    results = [(failed, search.result()) for failed, search in state.group_searches]
    for number, (failed, result) in enumerate(results):
        newer = {node for test, _ in results[number + 1 :] for node in test.nodes}
        for node in result.bad:
            if node not in newer:
                message = f"{_sizes(result)} it, whichever others they hold ({_why(failed)})"
                message += f"; {_rest(failed, result)}"
                finding = Finding("set", Grade.FAIL, message, remedy_of(state, _why(failed)))
                explanation.add(node, finding)
        if result.apart and not result.bad and newer.isdisjoint(result.apart):
            names = state.names(result.apart)
            observed = f"{_sizes(result)} each of {names} ({_why(failed)}); {_rest(failed, result)}"
            nodes = state.nodes
            others = [node for node in nodes if not explanation.is_unfit(node) and node not in result.apart]
            disputed = partition_findings.of_disputed(state, others, result.apart, observed)
            explanation.network.append(disputed)


def of_set(state: SessionState, explanation: Explanation) -> None:
    """Report the newest test of the whole set: its rate, or why it failed if no node explains that."""
    searches = {id(failed): search for failed, search in state.group_searches}
    tests = [test for test in state.log.of(GroupTest) if test.kind == SET]
    decided = [test for test in tests if test.passed or id(test) in searches]
    for test in decided[-1:]:
        if test.passed:
            explanation.add_all(expected_bandwidth.of_set(state, test))
            explanation.add_all(transport_findings.of_set(state, test))
            continue
        result, why = searches[id(test)].result(), _why(test)
        if len(test.nodes) == 1:
            message = f"its own ranks fail together: {why}"
            finding = Finding("set", Grade.FAIL, message, remedy_of(state, why))
            explanation.add(test.nodes[0], finding)
        elif len(test.nodes) == 2:
            names = state.names(test.nodes)
            message = f"{names} fail together ({why}); which of them is at fault cannot be told"
            explanation.network.append(Finding("set", Grade.FAIL, message, remedy_of(state, why, _THIRD)))
        elif not result.bad and not result.apart:
            is_unfinished = bool(searches[id(test)].next_round())
            message = f"the whole set fails ({why})"
            if result.passed >= len(result.least):
                message = f"{state.names(result.least)} fail together, and their pairs do not ({why})"
            elif not is_unfinished:
                sizes = (
                    f"no part of up to {result.passed} nodes does" if result.passed else "its pairs do not"
                )
                message += f", {sizes}: it is the set, not a single node"
            if 0 < len(result.common) < len(result.least):
                message += f"; {state.names(result.common)} are in all groups that failed"
            if is_unfinished:
                message += "; the search for a node was not finished: --preflight-budget gives more time"
            explanation.network.append(Finding("set", Grade.FAIL, message, remedy_of(state, why, _SET)))
    for group in state.log.of(SlowGroup):
        slow = f"are slow together, twice (limit {group.floor:.3g} GB/s); the other parts are not"
        finding = Finding("set", Grade.WARN, f"{state.names(group.nodes)} {slow}", _SLOW_PART)
        explanation.network.append(finding)


def _why(failed: GroupTest) -> str:
    return failed.failure or NO_ANSWER


def _sizes(result: GroupsResult) -> str:
    return f"groups of {result.size} nodes and more fail with"


def _rest(failed: GroupTest, result: GroupsResult) -> str:
    return f"the other {len(failed.nodes) - len(result.bad) - len(result.apart)} pass together"
