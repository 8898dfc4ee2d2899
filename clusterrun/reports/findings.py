"""Groups the findings of a report by nodes that share them, by link and for all nodes, worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import WORST_FIRST, Finding, Grade, LinkReport, NodeReport, Report

WORDS = {"excluded": "left out", "spare": "a spare", "rank": ""}
ARROWS = {"a->b": "→", "b->a": "←"}


@frozen
class NodeBlame:
    """The findings of one subject: nodes that share their findings, a link, or all nodes."""

    title: str  # names the subject
    grade: Grade
    word: str  # grade and role, '' if the subject is all nodes
    said: tuple[Finding, ...]  # worst first; a finding of a node names its check


def between(link: LinkReport) -> str:
    """Return both ends of a link, with a one-way arrow if only one direction is bad."""
    return f"{link.a} {ARROWS.get(link.direction, '↔')} {link.b}"


def blamed(report: Report, ends: Callable[[LinkReport], str] = between) -> list[NodeBlame]:
    """Return the subjects that have findings, worst first. ``ends`` returns the name of a link."""
    blames = [*_nodes(report), *_links(report, ends), *_set(report)]
    return sorted(blames, key=lambda blame: WORST_FIRST.index(blame.grade))


def node_findings(node: NodeReport) -> tuple[Finding, ...]:
    findings = (finding for finding in node.findings if finding.verdict is not Grade.PASS)
    return tuple(sorted(findings, key=lambda finding: WORST_FIRST.index(finding.verdict)))


def _nodes(report: Report) -> Iterator[NodeBlame]:
    groups: dict[tuple[Grade, str, tuple[Finding, ...]], list[str]] = {}
    for node in report.nodes:
        if node.verdict is not Grade.PASS or node_findings(node):
            groups.setdefault((node.verdict, node.role, node_findings(node)), []).append(node.node)
    for (grade, role, findings), names in groups.items():
        labels = [grade.value, *filter(None, [WORDS.get(role, role)])]
        yield NodeBlame(fold(names), grade, ", ".join(labels), findings)


def _links(report: Report, ends: Callable[[LinkReport], str]) -> Iterator[NodeBlame]:
    for link in report.links:
        if link.verdict is not Grade.PASS:
            finding = Finding("", link.verdict, link.said, link.remedy)
            yield NodeBlame(f"link {ends(link)}", link.verdict, link.verdict.value, (finding,))


def _set(report: Report) -> Iterator[NodeBlame]:
    if report.set_said:
        grade = report.verdict if report.verdict is not Grade.PASS else Grade.WARN
        yield NodeBlame("all nodes together", grade, "", (Finding("", grade, report.set_said),))
