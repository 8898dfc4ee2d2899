"""Render a pre-flight report as one self-contained page for a browser."""

from __future__ import annotations

import math
import time
from collections import Counter

from clusterrun.model.phrases import count_of
from clusterrun.model.preflight_report import WORST_FIRST, Grade, NodeReport, Report
from clusterrun.reports import html, svg
from clusterrun.reports.findings import blamed, node_findings
from clusterrun.reports.link_rates import Rates, rates
from clusterrun.reports.markup import number, tag
from clusterrun.reports.text_report import headline

# Findings above this number are folded, so that the map stays near the top of the page.
AT_ONCE = 8
# The page lists at most this many findings, and counts the others.
MOST_FINDINGS = 200
MOST_STRAGGLERS = 10
MOST_NODES = 3000
MOST_TESTS = 1500
# The table of nodes is unfolded if the report has fewer nodes than this.
OPEN_BELOW = 33
WORST_OUTCOME = {"failed": 0, "void": 1, "passed": 2}


def page(report: Report) -> str:
    """Return the page. It needs no scripts, loads nothing, and stays well below 3 MB for any report."""
    measured = rates(report)
    timed = [name for name in measured.nodes if measured.was_timed(name)]
    slowest = sorted(timed, key=measured.behind)[:MOST_STRAGGLERS]
    nodes = sorted(report.nodes, key=lambda node: WORST_FIRST.index(node.verdict))
    ranks = {name: str(index) for index, name in enumerate(report.world)}
    tests = sorted(report.tests, key=lambda test: (WORST_OUTCOME.get(test.outcome, 0), test.round))
    graded = Counter(node.verdict for node in report.nodes)
    links = sum(link.verdict is not Grade.PASS for link in report.links)
    slowest_pair = min((link.rate for link in measured.links.values() if link.rate is not None), default=None)
    fit = graded[Grade.PASS] + graded[Grade.WARN]
    tiles: list[tuple[int | str, str]] = [(fit, f"of {len(report.nodes)} nodes are fit")]
    tiles.append((graded[Grade.FAIL], "unfit"))
    if graded[Grade.UNDETERMINED]:
        tiles.append((graded[Grade.UNDETERMINED], "not judged"))
    tiles += [(graded[Grade.WARN], "with a warning"), (links, "links with a finding")]
    if measured.median is not None:
        tiles.append((number(measured.median), "GB/s, median"))
    if slowest_pair is not None:
        tiles.append((number(slowest_pair), "GB/s, slowest pair"))
    test_rows = []
    for test in tests[:MOST_TESTS]:
        names = ", ".join(test.nodes[:4])
        if len(test.nodes) > 4:
            names += f" … ({len(test.nodes)})"
        rate = _rate(test.gigabytes_per_second)
        seconds = f"{test.seconds:.2f}"
        row = (test.round, test.test, names, test.outcome, seconds, rate, test.message[:300])
        test_rows.append(row)
    return html.render(
        "report.html.j2",
        report=report,
        headline=headline(report),
        facts=_facts(report),
        tiles=tiles,
        findings=blamed(report),
        open_findings=AT_ONCE,
        most_findings=MOST_FINDINGS,
        map=svg.matrix(measured) if measured.links else None,
        legend=svg.legend(measured),
        nodes_in_a_square=math.ceil(len(measured.nodes) / svg.MOST_SQUARES),
        ring=svg.ring(measured, report.world) if measured.links else None,
        median=number(measured.median or 0),
        shares_bars=len(report.world) > svg.MOST_BARS,
        slowest_title="Slowest nodes" if len(timed) > MOST_STRAGGLERS else "Nodes, slowest first",
        slowest=[_straggler(name, measured) for name in slowest],
        nodes=[_node(node, ranks.get(node.node, "–"), measured) for node in nodes[:MOST_NODES]],
        nodes_are_open=len(report.nodes) < OPEN_BELOW,
        tests=test_rows,
        when=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.at)),
    )


def _facts(report: Report) -> str:
    cluster = f" on {report.cluster}" if report.cluster else ""
    backend = f", {report.backend}" if report.backend else ""
    spares = f", {len(report.spares)} spare" if report.spares else ""
    tested = f"{count_of(report.rounds, 'round')} of tests, {report.seconds:.1f} s of {report.budget:.0f} s"
    return f"{report.level} check{cluster}{backend}: {len(report.nodes)} nodes{spares}, {tested}"


def _straggler(name: str, rates: Rates) -> tuple[object, ...]:
    node, behind = rates.nodes[name], rates.behind(name)
    product = "–" if node.product is None else f"{node.product * 1e3:.0f} ms"
    return name, _rate(node.rate), product, f"{behind:.0%}", svg.meter(behind, svg.band(min(behind, 1.0)))


def _node(node: NodeReport, rank: str, rates: Rates) -> tuple[object, ...]:
    numbers = rates.nodes[node.node]
    failed = f", {numbers.failed} failed" if numbers.failed else ""
    return (
        node.node,
        tag("span", node.verdict.value, class_=f"chip {node.verdict.value}"),
        node.role,
        rank,
        _rate(numbers.rate),
        f"{numbers.tests}{failed}",
        ", ".join(dict.fromkeys(finding.check for finding in node_findings(node))),
    )


def _rate(rate: float | None) -> str:
    return "–" if rate is None else number(rate)
