"""The tables of the page: who is behind, every node, every test; worst first, draws no map."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.preflight_report import WORST_FIRST, Measurement, NodeReport, Report
from clusterrun.reports.findings import node_findings
from clusterrun.reports.link_rates import Rates
from clusterrun.reports.markup import Content, Markup, number, tag
from clusterrun.reports.svg import band, meter

MOST_STRAGGLERS = 10
MOST_NODES = 3000
MOST_TESTS = 1500
OPEN_BELOW = 33
"""So few nodes are shown at once; more when asked."""
WORST_OUTCOME = {"failed": 0, "void": 1, "passed": 2}


def stragglers(rates: Rates) -> Markup:
    timed = [name for name in rates.nodes if rates.was_timed(name)]
    slowest = sorted(timed, key=rates.behind)[:MOST_STRAGGLERS]
    rows = [_straggler(name, rates) for name in slowest]
    title = "Slowest nodes" if len(timed) > MOST_STRAGGLERS else "Nodes, slowest first"
    text = "The rate with the best third of its partners, a matrix product, the worse of both in shares."
    table = _table("node|GB/s:n|product:n|:n|", rows)
    return tag("section", tag("h2", title), tag("p", text, class_="soft"), table)


def _straggler(name: str, rates: Rates) -> tuple[Content, ...]:
    node, behind = rates.nodes[name], rates.behind(name)
    rate = "–" if node.rate is None else number(node.rate)
    product = "–" if node.product is None else f"{node.product * 1e3:.0f} ms"
    return name, rate, product, f"{behind:.0%}", meter(behind, band(min(behind, 1.0)))


def nodes(report: Report, rates: Rates) -> Markup:
    ordered = sorted(report.nodes, key=lambda node: WORST_FIRST.index(node.verdict))
    ranks = {name: str(at) for at, name in enumerate(report.world)}
    rows = [_node(node, ranks.get(node.node, "–"), rates) for node in ordered[:MOST_NODES]]
    table = _table("node|verdict|role|rank:n|GB/s:n|tests:n|", rows)
    title = tag("summary", f"All {len(report.nodes)} nodes")
    left = _left_out(len(report.nodes), MOST_NODES)
    is_open = "" if len(report.nodes) < OPEN_BELOW else None
    return tag("details", title, table, *left, open=is_open)


def _node(node: NodeReport, rank: str, rates: Rates) -> tuple[Content, ...]:
    numbers = rates.nodes[node.node]
    failed = f", {numbers.failed} failed" if numbers.failed else ""
    return (
        node.node,
        tag("span", node.verdict.value, class_=f"chip {node.verdict.value}"),
        node.role,
        rank,
        "–" if numbers.rate is None else number(numbers.rate),
        f"{numbers.tests}{failed}",
        ", ".join(dict.fromkeys(finding.check for finding in node_findings(node))),
    )


def tests(report: Report) -> Markup:
    ordered = sorted(report.tests, key=lambda test: (WORST_OUTCOME.get(test.outcome, 0), test.round))
    rows = [_test(test) for test in ordered[:MOST_TESTS]]
    table = _table("round:n|test|nodes|outcome|s:n|GB/s:n|", rows)
    left = _left_out(len(report.tests), MOST_TESTS)
    return tag("details", tag("summary", f"All {len(report.tests)} tests"), table, *left)


def _test(test: Measurement) -> tuple[Content, ...]:
    names = ", ".join(test.nodes[:4]) + (f" … ({len(test.nodes)})" if len(test.nodes) > 4 else "")
    rate = "–" if test.gigabytes_per_second is None else number(test.gigabytes_per_second)
    return test.round, test.test, names, test.outcome, f"{test.seconds:.2f}", rate, test.said[:300]


def _left_out(count: int, most: int) -> list[Markup]:
    return [tag("p", f"and {count - most} more in the report's JSON", class_="soft")] if count > most else []


def _table(heads: str, rows: Iterable[tuple[Content, ...]]) -> Markup:
    """A table; each head is its word and its column's class: ``node|rank:n`` (numbers, to the right)."""
    columns = [(word, kind or None) for word, _, kind in (head.partition(":") for head in heads.split("|"))]
    head = tag("tr", *(tag("th", word, class_=kind) for word, kind in columns))
    body = [
        tag("tr", *(tag("td", cell, class_=kind) for cell, (_, kind) in zip(row, columns))) for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
