"""Decide what is wrong with a job: every rule is asked, and the most certain hypothesis wins; pure."""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable, of_remains
from clusterrun.diagnosis.explain import RULES, either, explain
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import Diagnosis
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.model.frozen import frozen, replace


@frozen
class Judgement:
    """A diagnosis."""

    diagnosis: Diagnosis
    certain: bool = True  # a longer look would not change it
    later: float = 0.0  # seconds after which a look decides it; 0: the next look does


def decide(table: CallTable) -> Judgement:
    """Return the diagnosis of the most certain hypothesis.

    Equally certain hypotheses with different culprits blame nobody.
    """
    hypotheses = [hypothesis for rule in RULES for hypothesis in rule(table)]
    best = max(hypothesis.certainty for hypothesis in hypotheses)
    leaders = [hypothesis for hypothesis in hypotheses if hypothesis.certainty == best]
    if len({leader.culprits for leader in leaders}) > 1:
        return Judgement(replace(either(table, leaders), certainty=best))
    leader = leaders[0]
    return Judgement(replace(explain(table, leader), certainty=best), leader.final, leader.later)


def decide_end(remains: Remains) -> Diagnosis:
    """Return why a run ended, from what it left."""
    return decide(of_remains(remains)).diagnosis


def ended_by_timeout(remains: Remains) -> bool:
    """Return whether the first error is a collective's time-out: what was seen before it says more."""
    error = first_error(of_remains(remains))
    return error is not None and is_timeout(error)
