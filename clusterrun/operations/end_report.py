"""Gathers what a run that has ended left of its use and its times; reads for a limited time."""

from __future__ import annotations

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.record import Attempt, RunStatus
from clusterrun.operations.context import Context
from clusterrun.reports.efficiency import EndReport, MeasuredAttempt, ProgressMarks, account
from clusterrun.runs import usage_files
from clusterrun.runs.run_documents import read_document

READ_SECONDS = 5.0
"""For the samples of all nodes and attempts; what is not read in that time counts as not measured."""


def end_report(context: Context, status: RunStatus) -> EndReport | None:
    """What became of the time and the resources of a run; None where it lives, or never began."""
    if not status.state.ended:
        return None
    try:
        record, state = context.store.read(status.run_id), context.store.state(status.run_id)
    except ClusterrunError:
        return None
    if state is None or not state.attempts:
        return None
    until = context.clock.monotonic() + READ_SECONDS
    nodes = record.spec.nodes + record.spec.spares
    measured = [_measured(context, status.run_id, one, nodes, until) for one in state.attempts]
    return account(record, status.state, status.ended_at or state.updated_at, measured)


def _measured(context: Context, run_id: str, attempt: Attempt, nodes: int, until: float) -> MeasuredAttempt:
    if context.clock.monotonic() > until:
        return MeasuredAttempt(attempt)
    try:
        report = context.store.report(run_id, attempt.epoch)
    except ClusterrunError:
        report = None
    paths = context.store.paths(run_id).attempt(attempt.epoch)
    return MeasuredAttempt(
        attempt,
        report.seconds if report else 0.0,
        usage_files.newest(paths, nodes),
        _marks(paths),
    )


def _marks(paths: AttemptPaths) -> ProgressMarks | None:
    try:
        return read_document(ProgressMarks, paths.progress)
    except ClusterrunError:
        return None
