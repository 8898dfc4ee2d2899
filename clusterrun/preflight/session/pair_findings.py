"""Describe the results of tests of pairs and of the set, with numbers and remedies. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes.groups import GroupsResult
from clusterrun.preflight.causes.pair_search import Evidence, SearchResult
from clusterrun.preflight.causes.rails import slow_rails
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session import partition_findings
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.thresholds import for_backend, median_of

_BROKEN_GPU = "drain the node; then look at its GPUs (dcgmi diag -r 3) and network ports (ibstat, ip -s link)"
_BROKEN = "drain the node; then look at its network ports (ip -s link, ethtool -S) and its kernel log (dmesg)"
_WRONG = "drain the node: what it computes or sends is wrong without any error; have it replaced"
_SLOW_GPU = "look at its ports and PCIe: ibstat, ethtool, nvidia-smi -q -d PCIE; and at who else uses them"
_SLOW = "look at its network ports (ethtool, ip -s link), its load (top), and who else uses them"
_ALL_SLOW = "all are slow alike: look at the interface that is used, at NCCL_DEBUG=INFO, and at the switches"
_LINK = "look at cables and switch ports between {} and {}"
_THIRD = "give the check a node more to compare with: --spares 1"
_RAIL = (
    "look at the port of GPU {} (nvidia-smi topo -m names it; ibstat, mlxlink, nvidia-smi -q -d PCIE) and at "
    "its cable and switch"
)
_SET = "compare with NCCL_NVLS_ENABLE=0, NCCL_COLLNET_ENABLE=0 and fewer nodes; look at the spine switches"


@frozen
class PairFindings:
    """The findings of a search with tests of pairs."""

    state: SessionState
    result: SearchResult
    last: Mapping[frozenset[int], GroupTest]  # of each pair the last test, or the last that failed
    ways: Mapping[tuple[int, int], float]  # (from, to): GB/s

    def of_nodes(self) -> Iterator[NodeFinding]:
        for evidence in self.result.evidence:
            if len(evidence.nodes) == 1 and evidence.kind != "flaky":
                yield NodeFinding(evidence.nodes[0], self._node(evidence))
        median, floor = self.result.median, self.state.limits.pair_floor
        if median is not None and median < floor:
            message = f"pairs reach {median:.3g} GB/s, the median (limit {floor:.3g}: pair_floor)"
            yield NodeFinding(None, Finding("bandwidth", Grade.WARN, message, _ALL_SLOW))

    def write(self, phase: str) -> None:
        result = self.result
        of_links = [
            evidence for evidence in result.evidence if len(evidence.nodes) == 2 and evidence.kind != "flaky"
        ]
        self.state.write(phase, self.of_nodes(), map(self._link, of_links))
        failed, _ = self._across(result.parts)
        observed = f"{failed} tests of two nodes failed, none passed"
        partition_findings.write(self.state, phase, result.parts, observed)
        _, rates = self._across(result.slow_parts)
        between = median_of(rates or [0.0])
        partition_findings.write_slow(self.state, result.slow_parts, result.median or 0.0, between)

    def _across(self, parts: Sequence[tuple[int, ...]]) -> tuple[int, list[float]]:
        """Return how many links between the parts failed, and the rates of the others."""
        place = {node: number for number, part in enumerate(parts) for node in part}
        failed, rates = 0, []
        for nodes, test in self.last.items():
            if len({place[node] for node in nodes if node in place}) > 1:
                failed += test.passed is False
                if test.passed and test.rate is not None:
                    rates.append(test.rate)
        return failed, rates

    def passing(self) -> Iterator[str]:
        """Yield notices that blame nobody: links that failed at times, and slower kinds of links."""
        for evidence in self.result.evidence:
            if evidence.kind == "flaky":
                names = self.state.names(evidence.nodes)
                yield f"{names}: {evidence.failed} of {evidence.tests} tests failed, the others passed"
        fastest = max((kind.median for kind in self.result.kinds), default=0.0)
        for kind in self.result.kinds:
            if kind.factor > 1:
                plural = "s" if kind.levels > 1 else ""
                alone = "; there is only one, so whether it is slow cannot be told" if kind.links == 1 else ""
                yield (
                    f"the links over {kind.levels} level{plural} of switches reach {kind.median:.3g} GB/s, "
                    f"the fastest kind {fastest:.3g}: compared with their like{alone}"
                )

    def _node(self, evidence: Evidence) -> Finding:
        if evidence.kind == "slow":
            return Finding(
                "bandwidth", evidence.grade, _slow(evidence), _SLOW_GPU if self.state.has_gpus else _SLOW
            )
        why, failed = self._why(evidence), f"{evidence.failed} of {evidence.tests} tests failed"
        if evidence.kind == "undetermined":
            message = f"{failed} ({why}); by whose fault is not known"
            return Finding("pair", Grade.UNDETERMINED, message, _THIRD)
        if evidence.wrong:
            message = f"wrong sums in {evidence.wrong} of {evidence.tests} tests: {why}"
            return Finding("sums", evidence.grade, message, _WRONG)
        with_whom = self.state.names(dict.fromkeys(evidence.against))
        return Finding(
            "pair", evidence.grade, f"{failed}, with {with_whom or 'all'}: {why}", remedy_of(self.state, why)
        )

    def _why(self, evidence: Evidence) -> str:
        nodes = evidence.nodes
        keys = [frozenset(nodes)] if len(nodes) == 2 else [frozenset((*nodes, b)) for b in evidence.against]
        group_tests = (self.last[key] for key in keys if key in self.last)
        return next(filter(None, map(why_failed, group_tests)), "no answer within the limit")

    def _link(self, evidence: Evidence) -> LinkReport:
        a, b = evidence.nodes
        direction, message = "both", f"{evidence.failed} of {evidence.tests} tests failed"
        if evidence.kind == "slow":
            if self.ways.get((b, a), 0.0) < self.ways.get((a, b), 0.0):
                a, b = b, a
            forward, back = self.ways.get((a, b)), self.ways.get((b, a))
            direction = "a->b" if forward and back and forward < back / 2 else "both"
            message = _slow(evidence)
        elif evidence.kind == "broken":
            message += f", both nodes pass with others: {self._why(evidence)}"
        else:
            message += "; whether the link or a node is to blame is not known"
        first, second = self.state.nodes[a].name, self.state.nodes[b].name
        return LinkReport(first, second, direction, evidence.grade, message, _LINK.format(first, second))


def of_rails(state: SessionState) -> None:
    """Report slow rails. Ranks on processors share one network, so they have no rails."""
    limits = for_backend(state.limits, state.backend)
    slow = slow_rails(state.quantities.rails, limits) if state.backend == "nccl" else []
    node_findings: list[NodeFinding] = []
    links: list[LinkReport] = []
    for rail in slow:
        what, outlier = "sends" if rail.is_sending else "receives", rail.outlier
        median = f"{outlier.share:.0%} of the median {outlier.median:.3g}"
        rate = f"{outlier.value:.3g} GB/s, {median} (limit {outlier.limit:.3g})"
        name = state.nodes[rail.node].name
        remedy = _RAIL.format(rail.rail)
        if rail.partner is None:
            message = f"rail {rail.rail} (GPU {rail.rail} and its network port) {what} {rate}"
            node_findings.append(NodeFinding(rail.node, Finding("rails", Grade.WARN, message, remedy)))
        else:
            partner = state.nodes[rail.partner].name
            message = f"rail {rail.rail}: {rate}; either end may be at fault"
            links.append(LinkReport(name, partner, "a->b", Grade.WARN, message, remedy))
    state.write("rails", node_findings, links)


def broken_remedy(state: SessionState) -> str:
    return _BROKEN_GPU if state.has_gpus else _BROKEN


def remedy_of(state: SessionState, why: str, otherwise: str = "") -> str:
    """Return the remedy of a known error message. Else return ``otherwise``, or that of a broken node."""
    known_error = meaning(why)
    if known_error is not None and not known_error.consequence:
        return f"{known_error.cause}: {known_error.remedy}"
    return otherwise or broken_remedy(state)


def why_failed(test: GroupTest) -> str:
    return (test.wrong or test.why) if test.passed is False else ""


def _slow(evidence: Evidence) -> str:
    rate, limit, median = evidence.rate or 0.0, evidence.limit or 0.0, evidence.median or 0.0
    share = f", {rate / median:.0%} of the median {median:.3g}" if median else ""
    tests = f"{evidence.failed} of {evidence.tests} tests"
    return f"at best {rate:.3g} GB/s in {tests}{share} (limit {limit:.3g})"


def of_ends(state: SessionState) -> Iterator[NodeFinding]:
    """Report nodes whose torch worker ended repeatedly by itself. A single end is a notice."""
    for node in state.nodes.values():
        if len(node.ends) > 1:
            message = f"its Python ended {len(node.ends)} times during a matrix product: {node.ends[-1]}"
            yield NodeFinding(
                node.node, Finding("warm-process", Grade.FAIL, message, remedy_of(state, node.ends[-1]))
            )
        elif node.ends:
            state.notice(f"the Python of {node.name} ended once ({node.ends[0]}), and was started again")


def of_set(state: SessionState, failed: GroupTest, search: GroupsResult, unfinished: bool) -> None:
    """Report a set that fails although its nodes and pairs pass. ``unfinished``: the search continues."""
    why = why_failed(failed) or "no answer within the limit"
    rest = len(failed.nodes) - len(search.bad) - len(search.apart)
    groups, together = f"groups of {search.size} nodes and more fail with", f"the other {rest} pass together"
    for node in failed.nodes:  # nodes that an earlier search of a larger set found stay unfit
        message = f"{groups} it, whichever others they hold ({why}); {together}"
        finding = Finding("set", Grade.FAIL, message, remedy_of(state, why))
        state.nodes[node].write("groups", [finding] if node in search.bad else [])
    if search.bad:
        state.write("set", [])
    elif search.apart:
        observed = f"{groups} each of {state.names(search.apart)} ({why}); {together}"
        partition_findings.write_apart(state, search.apart, observed)
        state.write("set", [])
    elif len(failed.nodes) == 1:
        message = f"its own ranks fail together: {why}"
        finding = Finding("set", Grade.FAIL, message, remedy_of(state, why))
        state.write("set", [NodeFinding(failed.nodes[0], finding)])
    elif len(failed.nodes) == 2:
        message = (
            f"{state.names(failed.nodes)} fail together ({why}); which of them is at fault cannot be told"
        )
        state.write_of_all("set", "set", Grade.FAIL, message, remedy_of(state, why, _THIRD))
    else:
        message = _of_set(state, search, why, unfinished)
        state.write_of_all("set", "set", Grade.FAIL, message, remedy_of(state, why, _SET))


def _of_set(state: SessionState, search: GroupsResult, why: str, unfinished: bool) -> str:
    message = f"the whole set fails ({why})"
    if search.passed >= len(search.least):
        message = f"{state.names(search.least)} fail together, and their pairs do not ({why})"
    elif not unfinished:
        sizes = f"no part of up to {search.passed} nodes does" if search.passed else "its pairs do not"
        message += f", {sizes}: it is the set, not a single node"
    if 0 < len(search.common) < len(search.least):
        message += f"; {state.names(search.common)} are in all groups that failed"
    more = "; the search for a node was not finished: --preflight-budget gives more time"
    return message + more * unfinished
