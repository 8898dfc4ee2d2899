"""Collect the facts about one run: its options, its course, and its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clusterrun.logs.attempt_logs import attempts
from clusterrun.logs.tracker_links import TrackerLink, tracker_links
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.record import RunRecord, RunState, RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.operations.end_report import end_report
from clusterrun.reports.efficiency import EndReport
from clusterrun.runs import usage_files

T = TypeVar("T")


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


def run_details(context: Context, status: RunStatus) -> RunDetails:
    """Return the facts about the run of ``status``."""
    record = _readable(context.store.read, status.run_id)
    state = _readable(context.store.state, status.run_id)
    return RunDetails(
        status,
        record,
        state,
        tuple(_check(context, status.run_id, attempt.epoch) for attempt in (state.attempts if state else ())),
        tuple(tracker_links(context.store.paths(status.run_id))),
        end_report(context, status),
        "" if status.state.ended else _used(context, record, state),
        _log_folder(context, status.run_id),
        _ranks_that_trained_alone(context, status, state),
    )


def _readable(read: Callable[[str], T | None], run_id: str) -> T | None:
    try:
        return read(run_id)
    except ClusterrunError:
        return None


def _check(context: Context, run_id: str, epoch: int) -> str:
    from clusterrun.reports.text_report import headline

    try:
        report = context.store.report(run_id, epoch)
    except ClusterrunError as error:
        return error.seen
    return headline(report) if report else ""


def _used(context: Context, record: RunRecord | None, state: RunState | None) -> str:
    if record is None or state is None or not state.attempts:
        return ""
    attempt = context.store.paths(record.run_id).attempt(state.attempts[-1].epoch)
    return usage_files.summary(usage_files.newest(attempt, record.spec.nodes + record.spec.spares))


def _log_folder(context: Context, run_id: str) -> str:
    paths = context.store.paths(run_id)
    try:
        epochs = attempts(paths.attempts)
    except ClusterrunError as error:
        return error.seen
    return paths.attempt(epochs[-1]).folder if epochs else ""


def _ranks_that_trained_alone(context: Context, status: RunStatus, state: RunState | None) -> tuple[str, ...]:
    if state is None or status.state is not State.COMPLETED:
        return ()
    from clusterrun.operations.postmortem_input import left_alone  # it imports the whole diagnosis

    return left_alone(context.store.paths(status.run_id), state)
