"""Collect the facts about one run: its options, its course, and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    paths = context.store.paths(status.run_id)
    used = ""
    if not status.state.ended and record is not None and state is not None and state.attempts:
        attempt = paths.attempt(state.attempts[-1].epoch)
        used = usage_files.summary(usage_files.newest(attempt, record.spec.nodes + record.spec.spares))
    trained_alone: tuple[str, ...] = ()
    if state is not None and status.state is State.COMPLETED:
        from clusterrun.operations.postmortem_input import left_alone  # it imports the whole diagnosis

        trained_alone = left_alone(paths, state)
    return RunDetails(
        status,
        record,
        state,
        tuple(_check(context, status.run_id, attempt.epoch) for attempt in (state.attempts if state else ())),
        tuple(tracker_links(paths)),
        end_report(context, status),
        used,
        _log_folder(context, status.run_id),
        trained_alone,
        tuple(_undelivered(context, status.run_id))[-MOST_UNDELIVERED:],
    )


def _undelivered(context: Context, run_id: str) -> Iterator[str]:
    """Yield the lines of ``notify.log`` of every attempt, oldest first."""
    paths = context.store.paths(run_id)
    try:
        epochs = attempts(paths.attempts)
    except ClusterrunError:
        return
    for epoch in epochs:
        yield from text_of(paths.attempt(epoch).notify_log).splitlines()


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


def _log_folder(context: Context, run_id: str) -> str:
    """Return the folder of the newest attempt's logs, or why the attempts cannot be read."""
    paths = context.store.paths(run_id)
    try:
        epochs = attempts(paths.attempts)
    except ClusterrunError as error:
        return error.seen
    return paths.attempt(epochs[-1]).folder if epochs else ""
