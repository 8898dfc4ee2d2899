"""Ranks waited in ``init_process_group`` for ranks that did not come.

Ranks that were ended before they printed are silent as well, so the silent ranks are blamed only if their
number is the one that torch reports as missing.
"""

from __future__ import annotations

import re
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import failure_of, first_error
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.diagnosis.wording import mismatch
from clusterrun.model.states import State

CERTAINTY = 80
_SERVES = "The server socket has failed to listen on any local network address"
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not root:
        return []
    if root.rank > 0 and not run.per_node and _SERVES in root.text:
        return [Hypothesis(explain_second_server, CERTAINTY, (root.rank,))]
    if not root.row or root.row.verdict is not Verdict.NEVER_ARRIVED or is_timeout(root):
        return []
    reports = (match for error in run.errors if (match := _JOINED.search(error.text)))
    joined = next(reports, None)
    arrived, size = (int(joined[1]), int(joined[2])) if joined else (0, 0)
    silent = tuple(sorted({*range(len(run.nodes))} - {error.rank for error in run.errors}))
    is_known = not run.per_node and arrived != size and len(silent) == size - arrived
    explain = partial(explain_unmet, arrived=arrived, size=size, remedy=root.row.remedy)
    return [Hypothesis(explain, CERTAINTY, silent if is_known else ())]


def explain_second_server(table: CallTable, blamed: Ranks) -> Diagnosis:
    run, root = failure_of(table)
    at = f" at {short(root.frame)}" if root.frame else ""
    why = f"it opens the store of all ranks, as rank 0 alone does{at}, and its port is taken"
    sentence = f"{run.who(root.rank)} says perhaps that it is rank 0: {why}"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there; if it opens "
    remedy += "a store of its own, another process has that port; a script that starts its ranks itself "
    remedy += "(mp.spawn) runs once per node: --per-node"
    return mismatch(table, sentence, {root.rank: why}, remedy, [f"{run.name(root.rank)}: {root.message}"])


def explain_unmet(table: CallTable, blamed: Ranks, arrived: int, size: int, remedy: str) -> Diagnosis:
    run, root = failure_of(table)
    counts = f": {arrived} of {size} came" if size else ""
    sentence = f"ranks did not meet in init_process_group{counts}"
    if blamed:
        sentence = f"{ranks_in_words(blamed)} never came to init_process_group{counts}"
    why = "it printed nothing, while the others waited for it in init_process_group"
    culprits = run.culprits(dict.fromkeys(blamed, why))
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), (run.quoted(root),), remedy)
