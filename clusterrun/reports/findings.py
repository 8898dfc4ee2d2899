"""Group the findings of a report by nodes that share them, by link and for all nodes, worst first."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import (
    WORST_FIRST,
    Finding,
    Grade,
    NodeReport,
    Report,
    worst,
)

WORDS = {"excluded": "left out", "separated": "left out", "spare": "a spare", "rank": ""}


@frozen
class NodeBlame:
    """The findings of one subject: nodes that share their findings, a link, or all nodes."""

    title: str  # names the subject
    grade: Grade
    word: str  # grade and role, '' if the subject is all nodes
    findings: tuple[Finding, ...]  # worst first; a finding of a node names its check


def blamed(report: Report) -> list[NodeBlame]:
    """Return the subjects that have findings, worst first."""
    blames = list(_nodes(report))
    for link in report.links:
        if link.verdict is not Grade.PASS:
            finding = Finding("", link.verdict, link.message, link.remedy)
            blames.append(NodeBlame(f"link {link.ends}", link.verdict, link.verdict.value, (finding,)))
    if report.set_message:
        grade = report.verdict if report.verdict is not Grade.PASS else Grade.WARN
        blames.append(NodeBlame("all nodes together", grade, "", (Finding("", grade, report.set_message),)))
    return sorted(blames, key=lambda blame: WORST_FIRST.index(blame.grade))


def node_findings(node: NodeReport) -> tuple[Finding, ...]:
    findings = (finding for finding in node.findings if finding.verdict is not Grade.PASS)
    return tuple(sorted(findings, key=lambda finding: WORST_FIRST.index(finding.verdict)))


def _nodes(report: Report) -> Iterator[NodeBlame]:
    """Yield the nodes by their findings. A finding that several nodes share is reported once."""
    nodes_of_finding: dict[tuple[str, Finding], list[str]] = {}
    for node in report.nodes:
        for finding in node_findings(node):
            nodes_of_finding.setdefault((node.role, finding), []).append(node.node)
    findings_of_nodes: dict[tuple[str, tuple[str, ...]], list[Finding]] = {}
    for (role, finding), names in nodes_of_finding.items():
        findings_of_nodes.setdefault((role, tuple(names)), []).append(finding)
    for node in report.nodes:
        if node.verdict is not Grade.PASS and not node_findings(node):
            findings_of_nodes[node.role, (node.node,)] = []
    for (role, sharing), findings in findings_of_nodes.items():
        grades = [finding.verdict for finding in findings]
        grades += [node.verdict for node in report.nodes if not findings and node.node in sharing]
        labels = [worst(tuple(grades)).value, *filter(None, [WORDS.get(role, role)])]
        in_order = sorted(findings, key=lambda finding: WORST_FIRST.index(finding.verdict))
        yield NodeBlame(fold(sharing), worst(tuple(grades)), ", ".join(labels), tuple(in_order))
