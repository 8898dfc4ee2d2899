"""Collect the facts about one run: options, course, files, and how it used its time and resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from clusterrun.logs.attempt_logs import attempts
from clusterrun.logs.tracker_links import TrackerLink, tracker_links
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import Attempt, RunRecord, RunState, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.operations.job_matching import SKEW_SECONDS
from clusterrun.operations.run_files import formed
from clusterrun.reports.efficiency import EndReport, MeasuredAttempt, ProgressMarks, account
from clusterrun.runs import usage_files
from clusterrun.runs.run_documents import read_document
from clusterrun.system import text_of

T = TypeVar("T")
MOST_UNDELIVERED = 5


@frozen
class RunDetails:
    """A run with its files. An unreadable part is None or empty, and ``status.reason`` gives the reason."""

    status: RunStatus
    record: RunRecord | None
    state: RunState | None
    checks: tuple[str, ...]  # the headline of each attempt's pre-flight report; '' without one
    trackers: tuple[TrackerLink, ...]
    end_report: EndReport | None
    used: str  # a sentence on how a live run uses its nodes
    log_folder: str  # the logs of the newest attempt, or why they cannot be read
    trained_alone: tuple[str, ...]  # warnings about ranks that formed no group
    undelivered: tuple[str, ...]  # the newest sentences about messages that were not delivered


def run_details(context: Context, status: RunStatus) -> RunDetails:
    """Return the facts about the run of ``status``."""
    record = _readable(context.store.read, status.run_id)
    state = _readable(context.store.state, status.run_id)
    state = replace(state, attempts=ended_attempts(state, status)) if state else None
    paths = context.store.paths(status.run_id)
    used = ""
    if not status.state.ended and record is not None and state is not None and state.attempts:
        attempt = paths.attempt(state.attempts[-1].epoch)
        used = usage_files.summary(usage_files.newest(attempt, record.spec.nodes + record.spec.spares))
    trained_alone: tuple[str, ...] = ()
    if state is not None and status.state is State.COMPLETED:
        from clusterrun.operations.postmortem_input import left_alone  # it imports the whole diagnosis

        trained_alone = left_alone(paths, state)
    undelivered: list[str] = []
    log_folder = ""
    try:
        for epoch in attempts(paths.attempts):
            log_folder = paths.attempt(epoch).folder
            undelivered += text_of(paths.attempt(epoch).notify_log).splitlines()
    except ClusterrunError as error:
        log_folder = error.seen
    epochs = [attempt.epoch for attempt in state.attempts] if state else []
    return RunDetails(
        status=status,
        record=record,
        state=state,
        checks=tuple(_check(context, status.run_id, epoch) for epoch in epochs),
        trackers=tuple(tracker_links(paths)),
        end_report=end_report(context, status),
        used=used,
        log_folder=log_folder,
        trained_alone=trained_alone,
        undelivered=tuple(undelivered[-MOST_UNDELIVERED:]),
    )


def ended_attempts(state: RunState, status: RunStatus) -> tuple[Attempt, ...]:
    """Return the attempts of a run. The last one ends with the run if its coordinator recorded no end."""
    *earlier, last = state.attempts or (None,)
    if last is None or last.outcome or not status.state.ended:
        return state.attempts
    return (*earlier, replace(last, ended_at=status.ended_at, outcome=status.state.value))


def _readable(read: Callable[[str], T | None], run_id: str) -> T | None:
    try:
        return read(run_id)
    except ClusterrunError:
        return None


def _check(context: Context, run_id: str, epoch: int) -> str:
    """Return the headline of the pre-flight report of an attempt, or why it cannot be read."""
    from clusterrun.reports.text_report import headline

    try:
        report = context.store.report(run_id, epoch)
    except ClusterrunError as error:
        return error.seen
    return headline(report) if report else ""


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
    measured = []
    for attempt in state.attempts:
        if context.clock.monotonic() > until:
            measured.append(MeasuredAttempt(attempt))  # without its measurements
            continue
        preflight_report, marks = None, None
        paths = context.store.paths(status.run_id).attempt(attempt.epoch)
        with suppress(ClusterrunError):
            preflight_report = context.store.report(status.run_id, attempt.epoch)
        with suppress(ClusterrunError):
            marks = read_document(ProgressMarks, paths.progress)
        seconds = preflight_report.seconds if preflight_report else 0.0
        measured.append(MeasuredAttempt(attempt, seconds, usage_files.newest(paths, nodes), marks))
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
