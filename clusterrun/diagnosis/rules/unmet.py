"""Ranks waited in ``init_process_group`` for ranks that did not come.

Ranks that were ended before they printed are silent as well, so the silent ranks are blamed only if their
number is the one that torch reports as missing.
"""

from __future__ import annotations

import re

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.model.states import State

CERTAINTY = 80
_SERVES = "The server socket has failed to listen on any local network address"
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not root:
        return []
    if root.rank > 0 and not run.per_node and _SERVES in root.text:
        return [Hypothesis("second server", CERTAINTY, (root.rank,), {"root": root})]
    if not root.row or root.row.verdict is not Verdict.NEVER_ARRIVED or is_timeout(root):
        return []
    reports = (match for error in run.errors if (match := _JOINED.search(error.text)))
    joined = next(reports, None)
    came, size = (int(joined[1]), int(joined[2])) if joined else (0, 0)
    silent = tuple(sorted({*range(len(run.nodes))} - {error.rank for error in run.errors}))
    is_known = not run.per_node and came != size and len(silent) == size - came
    facts = {"root": root, "came": came, "size": size}
    return [Hypothesis("unmet", CERTAINTY, silent if is_known else (), facts)]
