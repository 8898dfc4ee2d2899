"""Collect the usage and the times of a run that has ended, within a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, RunRecord, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.operations.context import Context
from clusterrun.operations.job_matching import SKEW_SECONDS
from clusterrun.operations.run_files import formed
from clusterrun.reports.efficiency import EndReport, MeasuredAttempt, ProgressMarks, account
from clusterrun.runs import usage_files
from clusterrun.runs.run_documents import read_document

# Seconds to read the samples of all nodes and attempts. A sample that is read later counts as not measured.
READ_SECONDS = 5.0


def end_report(context: Context, status: RunStatus) -> EndReport | None:
    """Return how a run used its time and resources; None if it lives or never began."""
    if not status.state.ended:
        return None
    try:
        record, state = context.store.read(status.run_id), context.store.state(status.run_id)
    except ClusterrunError:
        return None
    if state is None or not state.attempts:
        return None
    record = replace(record, spec=formed(record.spec, state))
    until, ended_at = context.clock.monotonic() + READ_SECONDS, status.ended_at or state.updated_at
    nodes = record.spec.nodes + record.spec.spares
    measured = [_measured(context, status.run_id, attempt, nodes, until) for attempt in state.attempts]
    report = account(record, status.state, ended_at, measured)
    return replace(report, node_joules=_joules(context, record, state.attempts, ended_at))


def _joules(context: Context, record: RunRecord, attempts: Sequence[Attempt], ended_at: float) -> int | None:
    """Return the energy that Slurm measured for the run's jobs, in joules.

    None if Slurm measures none, or if the jobs belong to another cluster.
    """
    if record.cluster != Cluster.SLURM.value or context.other_cluster(record):
        return None
    jobs = sorted({attempt.job_id for attempt in attempts if attempt.job_id})
    return context.client().energy(jobs, record.submitted_at - SKEW_SECONDS, ended_at + SKEW_SECONDS)


def _measured(context: Context, run_id: str, attempt: Attempt, nodes: int, until: float) -> MeasuredAttempt:
    """Return an attempt with its measurements; without them if the time ``until`` has passed."""
    if context.clock.monotonic() > until:
        return MeasuredAttempt(attempt)
    report, marks = None, None
    paths = context.store.paths(run_id).attempt(attempt.epoch)
    with suppress(ClusterrunError):
        report = context.store.report(run_id, attempt.epoch)
    with suppress(ClusterrunError):
        marks = read_document(ProgressMarks, paths.progress)
    seconds = report.seconds if report else 0.0
    return MeasuredAttempt(attempt, seconds, usage_files.newest(paths, nodes), marks)
