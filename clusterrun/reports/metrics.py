"""A pre-flight report as Prometheus reads it from a file (node_exporter's textfile collector); pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from clusterrun.model.preflight_report import WORST_FIRST, Report

Sample = tuple[tuple[tuple[str, str], ...], float]

PREFIX = "clusterrun_preflight_"


def metrics(report: Report) -> str:
    """The whole text of the file; every sample also has the label ``cluster``."""
    own = (("cluster", report.cluster),)
    return "".join(_family(name, about, own, list(found(report))) for name, about, found in METRICS)


def _family(name: str, about: str, own: tuple[tuple[str, str], ...], samples: list[Sample]) -> str:
    if not samples:
        return ""
    head = f"# HELP {PREFIX}{name} {about}\n# TYPE {PREFIX}{name} gauge\n"
    lines = (f"{PREFIX}{name}{{{_labels((*own, *labels))}}} {value:.12g}\n" for labels, value in samples)
    return head + "".join(lines)


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    """A label's value: backslash, quote and newline are escaped, what is not a character is replaced."""
    clean = value.encode("utf-8", "replace").decode("utf-8")
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
    rates: dict[str, list[float]] = {}
    for test in report.tests:
        for node in test.nodes:
            if test.test == "pair" and test.gigabytes_per_second is not None:
                rates.setdefault(node, []).append(test.gigabytes_per_second)
    for node, found in sorted(rates.items()):
        yield (("node", node),), statistics.median(found) * 1e9


def _set_bandwidth(report: Report) -> Iterator[Sample]:
    rates = [test.gigabytes_per_second for test in report.tests if test.test == "set"]
    if found := [rate for rate in rates if rate is not None]:
        yield (), found[-1] * 1e9


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
"""Each metric with what it is, and its samples; all are gauges."""
