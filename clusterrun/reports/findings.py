"""Groups the findings of a report: nodes that share them, links, all nodes; worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import WORST_FIRST, Finding, Grade, LinkReport, NodeReport, Report

WORDS = {"excluded": "left out", "spare": "a spare", "rank": ""}
ARROWS = {"a->b": "→", "b->a": "←"}


@frozen
class NodeBlame:
    """Who (nodes that share their findings, a link, or all), and what is said of them, worst first.

    ``word`` is empty of all together; findings of a node name their check.
    """

    title: str
    grade: Grade
    word: str
    said: tuple[Finding, ...]


def between(link: LinkReport) -> str:
    """Both ends, with an arrow where only one direction is bad."""
    return f"{link.a} {ARROWS.get(link.direction, '↔')} {link.b}"


def blamed(report: Report, ends: Callable[[LinkReport], str] = between) -> list[NodeBlame]:
    """All that has something to say, worst first; ``ends`` names a link."""
    found = [*_nodes(report), *_links(report, ends), *_set(report)]
    return sorted(found, key=lambda one: WORST_FIRST.index(one.grade))


def node_findings(node: NodeReport) -> tuple[Finding, ...]:
    found = (finding for finding in node.findings if finding.verdict is not Grade.PASS)
    return tuple(sorted(found, key=lambda finding: WORST_FIRST.index(finding.verdict)))


def _nodes(report: Report) -> Iterator[NodeBlame]:
    groups: dict[tuple[Grade, str, tuple[Finding, ...]], list[str]] = {}
    for node in report.nodes:
        if node.verdict is not Grade.PASS or node_findings(node):
            groups.setdefault((node.verdict, node.role, node_findings(node)), []).append(node.node)
    for (grade, role, said), names in groups.items():
        words = [grade.value, *filter(None, [WORDS.get(role, role)])]
        yield NodeBlame(fold(names), grade, ", ".join(words), said)


def _links(report: Report, ends: Callable[[LinkReport], str]) -> Iterator[NodeBlame]:
    for link in report.links:
        if link.verdict is not Grade.PASS:
            said = Finding("", link.verdict, link.said, link.remedy)
            yield NodeBlame(f"link {ends(link)}", link.verdict, link.verdict.value, (said,))


def _set(report: Report) -> Iterator[NodeBlame]:
    if report.set_said:
        grade = report.verdict if report.verdict is not Grade.PASS else Grade.WARN
        yield NodeBlame("all nodes together", grade, "", (Finding("", grade, report.set_said),))
