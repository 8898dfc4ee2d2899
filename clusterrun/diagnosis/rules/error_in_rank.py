"""A rank printed an error of its own before any other: it failed first, and the others because of it.

Log times are known to about a second, so of two errors within one second the wrong one may be named.
"""

from __future__ import annotations

import re

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.remains import Remains

CERTAINTY = 60
_NUMBERS = re.compile(r"\d+")


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or not root:
        return []
    others = [error for error in run.errors if error.rank != root.rank]
    same = [error for error in others if _unnumbered(error) == _unnumbered(root)]
    facts = {"root": root, "same": same}
    if root.row and root.row.shared:
        # The rank that meets a full disk first is no culprit.
        return [Hypothesis("file system", CERTAINTY, facts=facts)]
    everywhere = _everywhere(run, root, same)
    culprits = tuple(error.rank for error in everywhere or [root])
    return [Hypothesis("error in rank", CERTAINTY, culprits, {**facts, "everywhere": everywhere})]


def _unnumbered(error: Error) -> str:
    """The message without numbers: the rank's own number may be among them."""
    return _NUMBERS.sub("#", error.text)


def _everywhere(run: Remains, root: Error, same: list[Error]) -> list[Error]:
    """One error per rank if all ranks, or all ranks of some nodes and no other, ended of the same error."""
    errors = {error.rank: error for error in reversed([*same, root])}
    nodes = {run.node(rank) for rank in errors}
    meant = {rank for rank, node in enumerate(run.nodes) if node in nodes}
    several = all(run.nodes.count(node) > 1 for node in nodes) or len(errors) == len(run.nodes) > 1
    is_whole = not run.per_node and several and meant == set(errors)
    return [error for _, error in sorted(errors.items())] if is_whole else []
