"""What tests of pairs and of the set mean, in words with numbers and remedies; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.search.group_search import GroupsSaid
from clusterrun.preflight.search.schedule import GroupTest
from clusterrun.preflight.search.search import Evidence, SearchResult
from clusterrun.preflight.session import partition_findings
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.thresholds import median_of

_BROKEN = "drain the node; then look at its GPUs (dcgmi diag -r 3) and its network ports (ibstat, ip -s link)"
_WRONG = "drain the node: what it computes or sends is wrong without any error; have it replaced"
_SLOW = "look at its ports and PCIe: ibstat, ethtool, nvidia-smi -q -d PCIE; and at who else uses them"
_ALL_SLOW = "all are slow alike: look at the interface that is used, at NCCL_DEBUG=INFO, and at the switches"
_LINK = "look at cables and switch ports between {} and {}"
_THIRD = "give the check a node more to compare with: --spares 1"
_SET = "compare with NCCL_NVLS_ENABLE=0, NCCL_COLLNET_ENABLE=0 and fewer nodes; look at the spine switches"


class PairFindings:
    """``last``: of each pair the last test, a failed one before all others; ``ways``: (from, to) → GB/s."""

    def __init__(
        self,
        state: SessionState,
        result: SearchResult,
        last: Mapping[frozenset[int], GroupTest],
        ways: Mapping[tuple[int, int], float],
    ) -> None:
        self._case, self._result, self._last, self._ways = state, result, last, ways

    def of_nodes(self) -> Iterator[NodeFinding]:
        for one in self._result.evidence:
            if len(one.nodes) == 1 and one.kind in ("broken", "slow", "undetermined"):
                yield NodeFinding(one.nodes[0], self._node(one))
        median, floor = self._result.median, self._case.limits.pair_floor
        if median is not None and median < floor:
            said = f"pairs reach {median:.3g} GB/s, the median (limit {floor:.3g}: pair_floor)"
            yield NodeFinding(None, Finding("bandwidth", Grade.WARN, said, _ALL_SLOW))

    def of_links(self) -> Iterator[LinkReport]:
        for one in self._result.evidence:
            if len(one.nodes) == 2 and one.kind in ("broken", "slow", "undetermined"):
                yield self._link(one)

    def of_parts(self, source: str) -> None:
        """A network that is partitioned, or slow, between groups of nodes."""
        result = self._result
        failed, _ = self._across(result.parts)
        partition_findings.write(
            self._case, source, result.parts, f"{failed} tests of two nodes failed, none passed"
        )
        _, between = self._across(result.slow_parts)
        partition_findings.write_slow(
            self._case, result.slow_parts, result.median or 0.0, median_of(between or [0.0])
        )

    def _across(self, parts: Sequence[tuple[int, ...]]) -> tuple[int, list[float]]:
        """Between groups: how many links failed, and the rates of those that did not."""
        place = {node: at for at, part in enumerate(parts) for node in part}
        ends = {key: [place[node] for node in key if node in place] for key in self._last}
        trials = [one for key, one in self._last.items() if len(set(ends[key])) > 1]
        rates = [one.rate for one in trials if one.passed and one.rate is not None]
        return sum(one.passed is False for one in trials), rates

    def passing(self) -> Iterator[str]:
        """What failed at times and passed at others: lines that blame nobody."""
        for one in self._result.evidence:
            if one.kind == "flaky":
                names = self._case.names(one.nodes)
                yield f"{names}: {one.failed} of {one.tests} tests failed, the others passed"
        yield from self._slower_kinds()

    def _slower_kinds(self) -> Iterator[str]:
        """Links over more switches that are slower alike are compared with each other: that is said."""
        kinds = self._result.kinds
        fastest = max((one.median for one in kinds), default=0.0)
        for one in kinds:
            if one.factor > 1:
                over = f"{one.levels} level{'s' if one.levels > 1 else ''} of switches"
                said = f"the links over {over} reach {one.median:.3g} GB/s"
                alone = "; there is only one, so whether it is slow cannot be told" if one.links == 1 else ""
                yield f"{said}, the fastest kind {fastest:.3g}: compared with their like{alone}"

    def _node(self, evidence: Evidence) -> Finding:
        if evidence.kind == "slow":
            return Finding("bandwidth", evidence.grade, _slow(evidence), _SLOW)
        why, failed = self._why(evidence), f"{evidence.failed} of {evidence.tests} tests failed"
        if evidence.kind == "undetermined":
            said = f"{failed} ({why}); by whose fault is not known"
            return Finding("pair", Grade.UNDETERMINED, said, _THIRD)
        if evidence.wrong:
            said = f"wrong sums in {evidence.wrong} of {evidence.tests} tests: {why}"
            return Finding("sums", evidence.grade, said, _WRONG)
        with_whom = self._case.names(dict.fromkeys(evidence.against))
        return Finding("pair", evidence.grade, f"{failed}, with {with_whom or 'all'}: {why}", _BROKEN)

    def _why(self, evidence: Evidence) -> str:
        """The words of the first test that failed there."""
        ends = (
            [evidence.nodes] if len(evidence.nodes) == 2 else [(*evidence.nodes, b) for b in evidence.against]
        )
        keys = map(frozenset, ends)
        trials = [self._last[key] for key in keys if key in self._last]
        found = (trial.wrong or trial.why for trial in trials if trial.passed is False)
        return next((words for words in found if words), "no answer within the limit")

    def _link(self, evidence: Evidence) -> LinkReport:
        a, b = evidence.nodes
        if evidence.kind == "slow" and self._ways.get((b, a), 0.0) < self._ways.get((a, b), 0.0):
            a, b = b, a
        first, second = self._case.subjects[a].name, self._case.subjects[b].name
        direction, said = "both", f"{evidence.failed} of {evidence.tests} tests failed"
        if evidence.kind == "slow":
            there, back = self._ways.get((a, b)), self._ways.get((b, a))
            direction = "a->b" if there and back and there < back / 2 else "both"
            said = _slow(evidence)
        elif evidence.kind == "broken":
            said += f", both nodes pass with others: {self._why(evidence)}"
        else:
            said += "; whether the link or a node is to blame is not known"
        return LinkReport(first, second, direction, evidence.grade, said, _LINK.format(first, second))


def _slow(evidence: Evidence) -> str:
    rate, limit, median = evidence.rate or 0.0, evidence.limit or 0.0, evidence.median or 0.0
    share = f", {rate / median:.0%} of the median {median:.3g}" if median else ""
    return (
        f"at best {rate:.3g} GB/s in {evidence.failed} of {evidence.tests} tests{share} (limit {limit:.3g})"
    )


def of_ends(state: SessionState) -> Iterator[NodeFinding]:
    """Nodes whose torch worker ended more than once while nobody else was concerned; once is a notice."""
    for one in state.subjects.values():
        if len(one.ends) > 1:
            said = f"its Python ended {len(one.ends)} times during a matrix product: {one.ends[-1]}"
            yield NodeFinding(one.node, Finding("warm-process", Grade.FAIL, said, _BROKEN))
        elif one.ends:
            state.notice(f"the Python of {one.name} ended once ({one.ends[0]}), and was started again")


def of_set(state: SessionState, failed: GroupTest, known: GroupsSaid, unfinished: bool) -> None:
    """What is said where the whole set fails, though its nodes and pairs do not."""
    why = failed.wrong or failed.why or "no answer within the limit"
    rest = len(failed.nodes) - len(known.bad) - len(known.apart)
    together = f"the other {rest} pass together"
    if known.bad:
        said = f"groups of {known.size} nodes and more fail with it, whichever others they hold ({why})"
        found = [
            NodeFinding(node, Finding("set", Grade.FAIL, f"{said}; {together}", _BROKEN))
            for node in known.bad
        ]
        state.write(f"groups of {len(failed.nodes)}: {state.names(failed.nodes)}", found)
        state.write("set", [])
    elif known.apart:
        seen = f"groups of {known.size} nodes and more fail with each of {state.names(known.apart)} ({why})"
        partition_findings.write_apart(state, known.apart, f"{seen}; {together}")
        state.write("set", [])
    else:
        state.write("set", [_of_set(state, failed, known, why, unfinished)])


def _of_set(
    state: SessionState, failed: GroupTest, known: GroupsSaid, why: str, unfinished: bool
) -> NodeFinding:
    more = (
        "; the search for a node was not finished: --preflight-budget gives more time" if unfinished else ""
    )
    if len(failed.nodes) == 1:
        said = f"its own ranks fail together: {why}"
        return NodeFinding(failed.nodes[0], Finding("set", Grade.FAIL, said, _BROKEN))
    if len(failed.nodes) == 2:
        said = f"{state.names(failed.nodes)} fail together ({why}); which of them is at fault cannot be told"
        return NodeFinding(None, Finding("set", Grade.FAIL, said, _THIRD))
    if known.passed < len(known.least):
        said = f"the whole set fails ({why})"
        if not more:
            sizes = f"no part of up to {known.passed} nodes does" if known.passed else "its pairs do not"
            said = f"{said}, {sizes}: it is the set, not a single node"
    else:
        said = f"{state.names(known.least)} fail together, and their pairs do not ({why})"
    if 0 < len(known.common) < len(known.least):
        said += f"; {state.names(known.common)} are in all groups that failed"
    return NodeFinding(None, Finding("set", Grade.FAIL, said + more, _SET))
