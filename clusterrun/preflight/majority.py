"""Find the nodes whose value differs from the majority."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.thresholds import MINORITY

# Limits of a finding: number of values, and characters of node names.
MOST_VALUES, MOST_CHARACTERS = 4, 60


@frozen
class Vote:
    """The values of all nodes, and which of them are outliers."""

    majority: str  # '' if there is none
    outliers: tuple[str, ...]  # nodes with another value, sorted
    nodes_by_value: tuple[tuple[str, tuple[str, ...]], ...]  # most common value first

    @property
    def is_unanimous(self) -> bool:
        return len(self.nodes_by_value) < 2


def vote(value_by_node: Mapping[str, str]) -> Vote:
    """Return the majority value and the nodes that differ from it."""
    nodes_by_value = defaultdict(list)
    for node in sorted(value_by_node):
        nodes_by_value[value_by_node[node]].append(node)
    ranked = sorted(nodes_by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    groups = tuple((value, tuple(nodes)) for value, nodes in ranked)
    majority, supporters = groups[0] if groups else ("", ())
    minority_size = len(value_by_node) - len(supporters)
    if len(groups) < 2 or MINORITY * minority_size > len(value_by_node):
        return Vote("", (), groups)
    outliers = tuple(node for node in sorted(value_by_node) if value_by_node[node] != majority)
    return Vote(majority, outliers, groups)


def outlier_findings(
    check: str, subject: str, value_by_node: Mapping[str, str], grade: Grade, remedy: str
) -> Iterator[tuple[str, Finding]]:
    """Yield (node, finding) for every outlier, or one finding for all nodes ('') if there is no majority.

    Two nodes that differ are both reported, with a warning at most: nobody knows which of them is right.
    """
    result = vote(value_by_node)
    if result.is_unanimous:
        return
    if result.majority:
        supporters = len(value_by_node) - len(result.outliers)
        for node in result.outliers:
            majority_text = f"it is {result.majority} on {supporters} of {len(value_by_node)} nodes"
            yield node, Finding(check, grade, f"{subject} is {value_by_node[node]}; {majority_text}", remedy)
        return
    holders = []
    for value, nodes in result.nodes_by_value[:MOST_VALUES]:
        names = fold(nodes)
        if len(names) > MOST_CHARACTERS:
            names = f"{len(nodes)} nodes"
        holders.append(f"{value} on {names}")
    listing = ", ".join(holders)
    mild_grade = grade if grade is Grade.PASS else Grade.WARN
    finding = Finding(check, mild_grade, f"{subject} differs between nodes: {listing}", remedy)
    for node in value_by_node if len(value_by_node) == 2 else [""]:
        yield node, finding
