"""Render a pre-flight report for Prometheus (node_exporter's textfile collector)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from clusterrun.model.preflight_report import WORST_FIRST, Report

Sample = tuple[tuple[tuple[str, str], ...], float]

PREFIX = "clusterrun_preflight_"


def metrics(report: Report) -> str:
    """Return the text of the file. Every sample also has the label ``cluster``."""
    cluster = (("cluster", report.cluster),)
    return "".join(
        _family(name, description, cluster, list(samples(report))) for name, description, samples in METRICS
    )


def _family(name: str, description: str, cluster: tuple[tuple[str, str], ...], samples: list[Sample]) -> str:
    if not samples:
        return ""
    head = f"# HELP {PREFIX}{name} {description}\n# TYPE {PREFIX}{name} gauge\n"
    lines = []
    for labels, value in samples:
        rendered = []
        for label, text in (*cluster, *labels):
            clean = text.encode("utf-8", "replace").decode("utf-8")
            escaped = clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            rendered.append(f'{label}="{escaped}"')
        lines.append(f"{PREFIX}{name}{{{','.join(rendered)}}} {value:.12g}\n")
    return head + "".join(lines)


def _info(report: Report) -> Iterator[Sample]:
    yield (("run_id", report.run_id), ("level", report.level), ("backend", report.backend)), 1


def _verdict(report: Report) -> Iterator[Sample]:
    for grade in WORST_FIRST:
        yield (("verdict", grade.value),), float(report.verdict is grade)


def _nodes(report: Report) -> Iterator[Sample]:
    for grade in WORST_FIRST:
        yield (("verdict", grade.value),), sum(node.verdict is grade for node in report.nodes)


def _fit(report: Report) -> Iterator[Sample]:
    for node in report.nodes:
        yield (("node", node.node),), float(node.node not in report.excluded)


def _findings(report: Report) -> Iterator[Sample]:
    for node in report.nodes:
        counts = Counter((finding.check, finding.verdict.value) for finding in node.findings)
        for (check, verdict), count in counts.items():
            yield (("node", node.node), ("check", check), ("verdict", verdict)), count


def _links(report: Report) -> Iterator[Sample]:
    counts = Counter((link.a, link.b, link.direction, link.verdict.value) for link in report.links)
    for (a, b, direction, verdict), count in counts.items():
        yield (("a", a), ("b", b), ("direction", direction), ("verdict", verdict)), count


def _bandwidths(report: Report) -> Iterator[Sample]:
    rates_by_node: dict[str, list[float]] = {}
    for test in report.tests:
        for node in test.nodes:
            if test.test == "pair" and test.gigabytes_per_second is not None:
                rates_by_node.setdefault(node, []).append(test.gigabytes_per_second)
    for node, rates in sorted(rates_by_node.items()):
        yield (("node", node),), statistics.median(rates) * 1e9


def _set_bandwidth(report: Report) -> Iterator[Sample]:
    rates = [test.gigabytes_per_second for test in report.tests if test.test == "set"]
    if measured := [rate for rate in rates if rate is not None]:
        yield (), measured[-1] * 1e9


# Name, description and function of the samples of each metric. All metrics are gauges.
METRICS: tuple[tuple[str, str, Callable[[Report], Iterable[Sample]]], ...] = (
    ("info", "The newest pre-flight check: its run, level and backend.", _info),
    ("verdict", "1 for the verdict of the check, 0 for the others.", _verdict),
    (
        "timestamp_seconds",
        "When the check had its verdict, in seconds since the epoch.",
        lambda report: [((), report.at)],
    ),
    ("duration_seconds", "How long the check took.", lambda report: [((), report.seconds)]),
    ("rounds", "Rounds of collective tests.", lambda report: [((), report.rounds)]),
    ("nodes", "Nodes by verdict.", _nodes),
    ("node_fit", "1 for a node that may train, 0 for one that was found unfit.", _fit),
    ("node_findings", "Findings of a node by check and verdict.", _findings),
    (
        "node_bus_bytes_per_second",
        "Median bus bandwidth of the tests of pairs that a node was in.",
        _bandwidths,
    ),
    ("link_findings", "Findings of a link by direction and verdict.", _links),
    ("set_bus_bytes_per_second", "Bus bandwidth of the whole set of nodes together.", _set_bandwidth),
)
