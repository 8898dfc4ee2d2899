"""Ranks wait for a key of the store, and the only rank whose lines set it waits as well, past them.

The key is evaluated from the source text with the variables as they are now.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import KEY, CallTable, set_line
from clusterrun.diagnosis.hypothesis import Hypothesis

CERTAINTY = 50


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_long_still:
        return []
    waits = [
        wait
        for wait in table.waits
        if wait.operation == KEY and table.wait_by_rank.keys() >= set(wait.missing)
    ]
    waiting_for = {}
    for wait in waits:
        (setter,) = wait.missing
        if set_line(table.of(setter), table.of(wait.rank).call.key)[0]:
            waiting_for[setter] = wait.rank
    if not waiting_for:
        return []
    facts = {"waiting": tuple(wait.rank for wait in waits), "waiting_for": waiting_for}
    return [Hypothesis("unset key", CERTAINTY, tuple(sorted(waiting_for)), facts)]
