"""A rank printed an error of its own before any other: it failed first, and the others because of it.

Log times are known to about a second, so of two errors within one second the wrong one may be named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.first_error import failure_of, first_error
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.printed_errors import Error
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict
from clusterrun.diagnosis.wording import MEMORY_REMEDY, MOST_CULPRITS, cut
from clusterrun.model.states import State

CERTAINTY = 60
MOST_ALSO = 2
MOST_NAMED = 8
_CHILD_KILLED = re.compile(
    r"is killed by signal: Killed|was killed by signal 9|terminated with signal SIGKILL"
)
_NUMBERS = re.compile(r"\d+")


def rule(table: CallTable) -> list[Hypothesis]:
    run, root = table.end, first_error(table)
    if not run or not root:
        return []
    others = [error for error in run.errors if error.rank != root.rank]
    same = [error for error in others if _unnumbered(error) == _unnumbered(root)]
    if root.row and root.row.shared:
        # The rank that meets a full disk first is no culprit.
        return [Hypothesis(partial(explain_file_system, same=same), CERTAINTY)]
    everywhere = _everywhere(run, root, same)
    culprits = tuple(error.rank for error in everywhere or [root])
    explain = partial(explain_error_in_rank, same=same, everywhere=everywhere)
    return [Hypothesis(explain, CERTAINTY, culprits)]


def _unnumbered(error: Error) -> str:
    """Return the message without numbers: the rank's own number may be among them."""
    return _NUMBERS.sub("#", error.text)


def _everywhere(run: Remains, root: Error, same: list[Error]) -> list[Error]:
    """Return an error per rank if exactly the ranks of all nodes, or of some, ended with the same error."""
    errors = {error.rank: error for error in reversed([*same, root])}
    nodes = {run.node(rank) for rank in errors}
    meant = {rank for rank, node in enumerate(run.nodes) if node in nodes}
    several = all(run.nodes.count(node) > 1 for node in nodes) or len(errors) == len(run.nodes) > 1
    is_whole = not run.per_node and several and meant == set(errors)
    return [error for _, error in sorted(errors.items())] if is_whole else []


def explain_error_in_rank(
    table: CallTable, blamed: Ranks, same: Sequence[Error], everywhere: Sequence[Error]
) -> Diagnosis:
    run, root = failure_of(table)
    cause = f": {root.row.cause}" if root.row else ""
    sentence = f"{run.who(root.rank, root.inner)} failed first{cause}"
    if everywhere:
        nodes = sorted({run.node(error.rank) for error in everywhere})
        of_nodes = "" if len(everywhere) == len(run.nodes) else f" of {', '.join(nodes[:MOST_NAMED])}"
        sentence = f"all {len(everywhere)} ranks{of_nodes} failed with the same error{cause}"
    if run.state is State.COMPLETED:
        sentence = f"the run ended with exit code 0, though {sentence}"
    culprits = tuple(
        Culprit(run.rank(error), run.node(error.rank), error.message) for error in everywhere or [root]
    )
    return _of_error(run, root, same, sentence, culprits[:MOST_CULPRITS])


def explain_file_system(table: CallTable, blamed: Ranks, same: Sequence[Error]) -> Diagnosis:
    """The node is to blame, or what several nodes share; no rank is."""
    run, root = failure_of(table)
    cause = root.row.cause if root.row else ""
    nodes = sorted({run.node(error.rank) for error in run.errors if error.row is root.row})
    where = f"on {nodes[0]}" if len(nodes) == 1 else f"that {', '.join(nodes[:MOST_NAMED])} use"
    name = run.name(root.rank, root.inner)
    culprits = (Culprit(-1, nodes[0], f"{cause}; {name} printed: {root.message}"),) if len(nodes) == 1 else ()
    return _of_error(run, root, same, f"{cause} {where}: {name} met it first", culprits)


def _of_error(
    run: Remains, root: Error, same: Sequence[Error], sentence: str, culprits: tuple[Culprit, ...]
) -> Diagnosis:
    verdict, remedy = Verdict.CRASHED, ""
    if root.row:
        verdict, remedy = root.row.verdict, root.row.remedy
    else:
        subject = run.name(root.rank) if root.inner >= 0 else "it"
        remedy = f"clusterrun logs --rank {root.rank} shows all that {subject} printed"
    memory = run.memory_notes if _CHILD_KILLED.search(root.text) else ()
    if memory:
        verdict, remedy = Verdict.OUT_OF_MEMORY, MEMORY_REMEDY
    if run.state is State.COMPLETED:
        remedy = "a pipe or a wrapper hides the exit code: set -o pipefail (bash), or let Python be the last "
        remedy += "program that runs"
    evidence = [run.quoted(root), *memory]
    if same:
        evidence.append(f"{run.several(same)} printed the same")
    own_errors = [error for error in run.errors if (error.rank, error.inner) == (root.rank, root.inner)]
    also = [
        error
        for error in own_errors
        if error.text != root.text and not error.is_consequence and not error.survived
    ]
    name = run.name(root.rank, root.inner)
    evidence += [f"{name} also printed: {cut(error.message)}" for error in also[-MOST_ALSO:]]
    return Diagnosis(verdict, sentence, culprits, (), tuple(evidence), remedy)
