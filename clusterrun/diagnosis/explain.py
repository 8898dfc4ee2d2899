"""Turn a hypothesis into a diagnosis: the sentence, a reason per culprit, evidence and remedy; pure.

Each rule explains its own hypotheses. This file adds what does not depend on the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from clusterrun.diagnosis import rule_modules
from clusterrun.diagnosis.calls import STOPPED, CallTable
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.stacks import is_library, short
from clusterrun.diagnosis.verdict import Diagnosis, Stacks, Verdict, folded, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import cut
from clusterrun.model.frozen import replace

MOST_GROUPS = 16
_MODULES = [module for module in vars(rule_modules).values() if hasattr(module, "rule")]
# Their order decides nothing.
RULES: tuple[Callable[[CallTable], list[Hypothesis]], ...] = tuple(module.rule for module in _MODULES)


def explain(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    """Return the diagnosis of a hypothesis, with the stacks and circumstances of running ranks."""
    diagnosis = hypothesis.explain(table, hypothesis.culprits)
    if table.end:
        return hypothesis.complete(table, diagnosis)
    lacking = []
    # A thread that all ranks have except one may have died of an error that nobody saw.
    ranks = [rank for rank in table.living if rank.stacks.main]
    entries = {}
    for rank in ranks:
        user_threads = [thread.entry for thread in rank.stacks.threads if not is_library(thread.entry)]
        entries[rank.rank] = {_function(entry) for entry in user_threads}
    for entry in sorted(set().union(*entries.values())):
        vote = RankVote({rank: entry in entries_of_rank for rank, entries_of_rank in entries.items()})
        if vote.lone() >= 0 and vote.sides[0][0]:
            others = ranks_in_words(vote.sides[0][1])
            lacks = f"rank {vote.lone()} has no thread in {entry}, as {others} have"
            lacking.append(f"{lacks}: did it end, and of what error?")
    handling = []
    for culprit in diagnosis.culprits[:MOST_GROUPS]:
        handles = table.of(culprit.rank).stacks.handles if culprit.rank in table.by_rank else ""
        if handles:
            frame, _, error = handles.partition(": ")
            block = f"rank {culprit.rank} is in an except or finally block"
            handling.append(f"{block}, after {cut(error)} at {short(frame)}")
    in_block = [rank for rank in table.living if rank.stacks.block]
    if len(in_block) < len(table.living):
        for rank in in_block[:MOST_GROUPS]:
            frame, _, block = rank.stacks.block.rpartition(": ")
            noun = block if " after " in block else f"the `{block}` block"
            late = ": an error that led it there is printed only after it" if block == "finally" else ""
            handling.append(f"rank {rank.rank} is in {noun} at {short(frame)}{late}")
    culprits = {culprit.rank for culprit in diagnosis.culprits}
    blocks = [rank.stacks.block.rpartition(": ")[2] for rank in in_block if rank.rank in culprits]
    if handling and blocks:
        remedy = "print the error before that block makes a collective, or let it make none; or "
        if blocks[0].startswith("if "):
            remedy = f"move the call out of the `{blocks[0]}` block; or "
        diagnosis = replace(diagnosis, remedy=remedy + diagnosis.remedy)
    evidence = (*diagnosis.evidence, *handling, *lacking, *circumstances(table))
    groups = tuple(Stacks(folded(ranks), stack) for stack, ranks in _by_stack(table)[:MOST_GROUPS])
    return replace(diagnosis, groups=groups, evidence=evidence)


def either(table: CallTable, hypotheses: Sequence[Hypothesis]) -> Diagnosis:
    """Return the diagnosis of equally certain hypotheses with different culprits. It blames no rank."""
    diagnoses = [explain(table, hypothesis) for hypothesis in hypotheses]
    verdicts = {diagnosis.verdict for diagnosis in diagnoses}
    sentence = "either " + ", or ".join(diagnosis.message for diagnosis in diagnoses)
    evidence = tuple(dict.fromkeys(line for diagnosis in diagnoses for line in diagnosis.evidence))
    remedy = "; or: ".join(dict.fromkeys(diagnosis.remedy for diagnosis in diagnoses if diagnosis.remedy))
    verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.UNDETERMINED
    return Diagnosis(verdict, sentence, (), diagnoses[0].groups, evidence, remedy)


def circumstances(table: CallTable) -> Iterator[str]:
    """Return facts that decide nothing, but help the user."""
    for node, why in table.mute:
        yield f"no answer from {node}: {why}"
    for rank, debt in table.owed[:MOST_GROUPS]:
        sent = f"rank {rank.rank} on {rank.node} sent {debt.waiting} bytes to {table.node_at(debt.peer)}"
        yield f"{sent} ({debt.peer}) {debt.retries} times without an answer"
    unanswered = [rank.rank for rank in table.living if not rank.answered and rank.state not in STOPPED]
    if unanswered and not table.by_stacks:
        yield f"{ranks_in_words(unanswered)} did not report groups (no Python, no prelude, or too busy)"
    beyond = [rank for _, ranks in _by_stack(table)[MOST_GROUPS:] for rank in ranks]
    if beyond:
        yield f"{MOST_GROUPS} stacks are shown: that of {ranks_in_words(beyond)} is not"
    if table.stalled:
        yield f"nothing has moved for {table.stalled:.0f} s"


def _function(frame: str) -> str:
    """Return ``upload (train.py)`` for the frame in which a thread began: its line may change."""
    where, _, function = frame.rpartition(" ")
    return f"{function} ({where.rpartition(':')[0].rpartition('/')[2]})"


def _by_stack(table: CallTable) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return the ranks with equal stacks, the smallest group first: the few are the suspects."""
    ranks_by_stack: dict[tuple[str, ...], list[int]] = {}
    for rank in table.ranks:
        ranks_by_stack.setdefault(rank.stacks.main, []).append(rank.rank)
    return sorted(ranks_by_stack.items(), key=lambda item: (len(item[1]), item[1]))
