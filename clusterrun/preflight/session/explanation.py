"""Explain the observations of a check so far: findings about nodes, links and the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import WORST_FIRST, Finding, Grade, LinkReport, worst
from clusterrun.preflight.session.node_selection import Choice, choose
from clusterrun.preflight.session.node_state import NodeState

Parts = Sequence[Sequence[int]]

# A spare is preferred to a node with a warning of these checks.
_OF_SPEED = ("bandwidth", "product", "pair")


@frozen
class NodeFinding:
    node: int | None  # None: all nodes together
    finding: Finding


@frozen
class NetworkFinding:
    """A finding about all nodes together. Its grade depends on whether enough nodes can train."""

    check: str
    message: str
    remedy: str
    parts: Parts = ()  # the network is partitioned between these nodes
    if_too_few: str = ""  # added to the message if too few nodes can train; ``{}`` is the largest part
    disputed: tuple[int, ...] = ()  # nodes that may be at fault: FAIL if one of them trains


class Explanation:
    """The findings of a check.

    ``places``: how many nodes train. The first nodes are planned for them, the others are spares.
    ``excused``: nodes that are gone because of another node or the network.
    ``unreached``: nodes that are gone, and perhaps work together in another part of the network.
    ``blocked``: nodes with blocked ports. They, cut-off and lossy nodes explain findings of their links.
    ``bad_links``: links whose dials failed.
    """

    def __init__(self, nodes: Mapping[int, NodeState], places: int) -> None:
        self._nodes, self._places = nodes, places
        self._numbers = {node.name: number for number, node in nodes.items()}
        self.excused: set[int] = set()
        self.unreached: list[int] = []
        self.blocked: set[int] = set()
        self.cut_off: set[int] = set()
        self.lossy: set[int] = set()
        self.bad_links: set[frozenset[int]] = set()
        self.host_fails = False  # the control round blames the coordinator's node
        self.dial_parts: Parts = ()  # between which connections fail
        self.presence: dict[int, tuple[Finding, ...]] = {}  # by node: why it is gone, or is cut off
        self.network: list[Finding | NetworkFinding] = []
        self._findings: dict[int, list[Finding]] = {node: [] for node in nodes}
        self._links: list[tuple[LinkReport, bool]] = []  # with whether tests of pairs found it
        self._choice: Choice | None = None

    # --- findings are added ---

    def add(self, node: int | None, finding: Finding) -> None:
        """Add a finding about a node, or about all nodes together (None)."""
        findings = self.network if node is None else self._findings[node]
        findings.append(finding)

    def add_all(self, findings: Iterable[NodeFinding]) -> None:
        for node_finding in findings:
            self.add(node_finding.node, node_finding.finding)

    def add_links(self, links: Iterable[LinkReport], of_pairs: bool = False) -> None:
        self._links += [(link, of_pairs) for link in links]

    def excuse(
        self, nodes: Iterable[int], reason: str, remedy: str = "see the findings about the network"
    ) -> None:
        """Blame none of these nodes, which are gone: another node or the network may be at fault."""
        for node in nodes:
            node_state = self._nodes[node]
            message = f"{node_state.absent or node_state.gone}; {reason}"
            self.explain_gone(node, Grade.UNDETERMINED, message, remedy)
            self.excused.add(node)

    def explain_gone(self, node: int, grade: Grade, message: str, remedy: str) -> None:
        """Replace the finding that says why the agent of a node is missing."""
        self.presence[node] = (Finding("agent", grade, message, remedy),)

    # --- what they show ---

    def findings(self, node: int) -> tuple[Finding, ...]:
        return (*self.presence.get(node, ()), *self._findings[node])

    def verdict(self, node: int) -> Grade:
        return worst(tuple(finding.verdict for finding in self.findings(node)))

    def is_unfit(self, node: int) -> bool:
        return bool(self._nodes[node].gone) or self.verdict(node) is Grade.FAIL

    def able(self) -> list[int]:
        """Return the fit nodes whose torch workers run."""
        nodes = self._nodes.values()
        return [node.node for node in nodes if node.has_torch and not self.is_unfit(node.node)]

    @property
    def links(self) -> tuple[LinkReport, ...]:
        """Return the links with findings, each once, with its worst one.

        A node at fault may explain those of its links.
        """
        by_ends: dict[frozenset[str], list[LinkReport]] = {}
        for link, of_pairs in self._links:
            explaining = self.blocked | self.cut_off | (self.lossy if of_pairs else set())
            if explaining.isdisjoint((self._numbers[link.a], self._numbers[link.b])):
                by_ends.setdefault(frozenset((link.a, link.b)), []).append(link)
        return tuple(
            min(links, key=lambda link: WORST_FIRST.index(link.verdict)) for links in by_ends.values()
        )

    def parts(self) -> Parts:
        """Return the parts of a partitioned network by the first finding; () if it is not partitioned."""
        divided = (finding.parts for finding in self.network if isinstance(finding, NetworkFinding))
        return next(filter(None, divided), ())

    def largest_fit_part(self) -> tuple[int, ...]:
        """Return the part with most fit nodes of a partitioned network; () if it is not partitioned."""
        fit = (tuple(node for node in part if not self.is_unfit(node)) for part in self.parts())
        return max(fit, key=lambda part: (len(part), -min(part, default=0)), default=())

    def elsewhere(self) -> set[int]:
        """Return the nodes outside the chosen part of a partitioned network."""
        chosen = self.largest_fit_part()
        return {node for node in self._nodes if node not in chosen} if chosen else set()

    def choice(self) -> Choice:
        """Return the nodes that train."""
        if self._choice is None:
            numbers = list(self._nodes)
            unfit = {node for node in numbers if self.is_unfit(node)}
            bad = [link for link in self.links if link.verdict is Grade.FAIL]
            slow = {
                node
                for node in numbers
                for finding in self.findings(node)
                if finding.check in _OF_SPEED and finding.verdict is not Grade.PASS
            }
            self._choice = choose(
                numbers[: self._places],
                numbers[self._places :],
                unfit,
                [(self._numbers[link.a], self._numbers[link.b]) for link in bad],
                slow,
                self.elsewhere() - unfit,
            )
        return self._choice

    def together(self) -> tuple[Finding, ...]:
        """Return the findings about all nodes together."""
        choice, findings = self.choice(), []
        for finding in self.network:
            if isinstance(finding, NetworkFinding):
                message = finding.message
                if not choice.whole and finding.if_too_few:
                    part = self.largest_fit_part()
                    names = fold([self._nodes[node].name for node in part])
                    message += finding.if_too_few.format(f"--nodes {len(part)} --nodelist {names}")
                can_train = choice.whole and set(finding.disputed).isdisjoint(choice.nodes)
                grade = Grade.WARN if can_train else Grade.FAIL
                findings.append(Finding(finding.check, grade, message, finding.remedy))
            else:
                findings.append(finding)
        return tuple(findings)

    def together_has(self, grade: Grade) -> bool:
        return any(finding.verdict is grade for finding in self.together())
