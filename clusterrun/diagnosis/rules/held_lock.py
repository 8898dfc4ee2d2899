"""A rank holds the lock of a file that others wait for, and waits for others itself.

The kernel lists who holds which lock. Fooled only if the lock is released by a third process.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import LOCK, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis

CERTAINTY = 48


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.is_long_still:
        return []
    waiting: dict[int, list[int]] = {}
    for wait in table.waits:
        if wait.operation == LOCK and table.wait_by_rank.keys() >= set(wait.missing):
            waiting.setdefault(wait.missing[0], []).append(wait.rank)
    return (
        [Hypothesis("held lock", CERTAINTY, tuple(sorted(waiting)), {"waiting": waiting})] if waiting else []
    )
