"""Add to the diagnosis of an ended run what its ranks printed, logged and did at the end; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.explain_rank import reason
from clusterrun.diagnosis.printed_errors import Error, is_timer
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.diagnosis.wording import cut
from clusterrun.model.frozen import replace


def with_printed(diagnosis: Diagnosis, errors: Iterable[Error], per_node: bool) -> Diagnosis:
    """Add the errors of the culprits that did not end the run by themselves."""
    own_errors = [error for error in errors if not error.is_consequence and not is_timer(error)]
    newest = {error.inner if per_node else error.rank: error for error in own_errors}
    blamed = sorted({culprit.rank for culprit in diagnosis.culprits if culprit.rank >= 0} & newest.keys())
    printed = [
        f"rank {rank} has printed: {newest[rank].message}" for rank in blamed if not is_timeout(newest[rank])
    ]
    return replace(diagnosis, evidence=(*diagnosis.evidence, *printed))


def with_logged(diagnosis: Diagnosis, complaints: Mapping[int, str]) -> Diagnosis:
    """Add what the culprits logged of an error that did not end them, by rank."""
    ranks = sorted({culprit.rank for culprit in diagnosis.culprits} & complaints.keys())
    lines = [f"rank {rank} has logged: {cut(complaints[rank])}" for rank in ranks]
    evidence_text = "\n".join(diagnosis.evidence)
    new = tuple(line for line in lines if line.partition(": ")[2] not in evidence_text)
    return replace(diagnosis, evidence=(*diagnosis.evidence, *new))


def with_stacks(table: CallTable, diagnosis: Diagnosis) -> Diagnosis:
    """Add where the awaited ranks were when the run ended: they print nothing themselves."""
    rank_by_number = {rank.rank: rank for rank in table.ranks if rank.stacks.main}
    lines = {
        number: f"; when it was asked to end, it was at {rank.location.line}"
        for number, rank in rank_by_number.items()
        if rank.location.line
    }
    awaited = [
        rank_by_number[culprit.rank] for culprit in diagnosis.culprits if culprit.rank in rank_by_number
    ]
    if diagnosis.verdict is not Verdict.NEVER_ARRIVED or not lines or not awaited:
        return diagnosis
    culprits = tuple(
        replace(culprit, why=culprit.why + lines.get(culprit.rank, "")) for culprit in diagnosis.culprits
    )
    sentence = diagnosis.message
    if len(culprits) == 1:
        sentence = f"{sentence.partition(diagnosis.culprits[0].why)[0].rstrip(': ')}: {culprits[0].why}"
    return replace(diagnosis, message=sentence, culprits=culprits, remedy=reason(awaited[0]).remedy)


def with_output(table: CallTable, diagnosis: Diagnosis) -> Diagnosis:
    """Add where the awaited ranks were, and what other ranks printed because of it."""
    return with_consequences(table, with_stacks(table, diagnosis))


def with_consequences(table: CallTable, diagnosis: Diagnosis) -> Diagnosis:
    """Add what other ranks printed because of it."""
    run = table.end
    if run is None:
        return diagnosis
    blamed = {(culprit.node, culprit.rank) for culprit in diagnosis.culprits}
    others = [error for error in run.errors if (run.node(error.rank), run.rank(error)) not in blamed]
    noticed = [error for error in others if error.is_consequence]
    # A launcher's own message adds nothing to those of its ranks.
    noticed = [error for error in noticed if error.inner >= 0] or noticed
    if not noticed:
        return diagnosis
    first = min(noticed, key=lambda error: (error.rank, error.inner))
    line = f"a consequence only, of {run.several(noticed)}: {cut(first.text)}"
    line += f", at {short(first.frame)}" if first.frame else ""
    return replace(diagnosis, evidence=(*diagnosis.evidence, line))
