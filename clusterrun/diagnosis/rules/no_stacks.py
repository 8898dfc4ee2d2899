"""No stack of any rank could be read. States, wait channels and absent processes are all that is known.

A rank without a process is blamed if all others sleep. A rank that has just ended fools this rule, until the
launcher notices.
"""

from __future__ import annotations

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.job_looks import NO_PYTHON, NOT_INSTALLED
from clusterrun.diagnosis.rules.absent_rank import explain_never_arrived
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words

# Above the rules that conclude from the absence of collectives, below all rules that read stacks.
CERTAINTY = 15
ABSENT = 58


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.by_stacks or not table.living:
        return []
    if any(rank.stacks.main for rank in table.living):
        return []
    absent = tuple(rank.rank for rank in table.ranks if not rank.state)
    asleep = all(rank.state in ("S", "I") and not rank.works for rank in table.living)
    if absent and asleep:
        return [Hypothesis(explain_never_arrived, ABSENT, absent)]
    # Without a reason, they may be beginning or ending.
    return [Hypothesis(explain_no_stacks, CERTAINTY, final=any(rank.problem for rank in table.living))]


def explain_no_stacks(table: CallTable, blamed: Ranks) -> Diagnosis:
    problems = [rank.problem for rank in table.living if rank.problem]
    ranks = ranks_in_words(rank.rank for rank in table.living)
    sentence = f"not enough seen: no Python stack of {ranks} could be read"
    remedy = "diagnose again: they may have been beginning or ending"
    if problems:
        problem = max(problems, key=problems.count)
        sentence += f": {problem}"
        if problem == NO_PYTHON and any(rank.works or rank.printed for rank in table.living):
            busy = sum(rank.process.busy for rank in table.living)
            return Diagnosis(Verdict.NOTHING, f"{ranks}: no Python, but at work ({busy:.1f} processors)")
        if problem == NO_PYTHON:
            place = f"clusterrun exec --node {table.living[0].node} -- ps -ef"
            remedy = f"what do their programs wait for? See the job's output, and {place}"
        elif problem == NOT_INSTALLED:
            remedy = "pip install 'clusterrun[spy]', here or in the ranks' environment, and diagnose again"
        else:
            remedy = "let an administrator change that, or diagnose as root with --user. Without stacks: "
            remedy += "clusterrun top shows which rank computes"
    return Diagnosis(Verdict.UNDETERMINED, sentence, remedy=remedy)
