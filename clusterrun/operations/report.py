"""Find the pre-flight report of a run, or the reason why there is none."""

from __future__ import annotations

import os

from clusterrun.logs.attempt_logs import attempts
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.orders import Level
from clusterrun.model.preflight_report import Report
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context


class NoReport(ClusterrunError):
    """The run has no pre-flight report (yet). The exit code is 2."""

    code = ExitCode.USAGE


def report_of(context: Context, run_id: str, attempt: int | None = None) -> Report:
    """Return the report of ``attempt``, or the newest report of the run.

    Raise ``NoReport`` with the reason.
    """
    reported = attempts_with_report(context, run_id)
    if attempt is None and reported:
        attempt = reported[-1]
    report = context.store.report(run_id, attempt) if attempt is not None else None
    if report is None:
        raise _missing(context, run_id, attempt, reported)
    return report


def attempts_with_report(context: Context, run_id: str) -> list[int]:
    """Return the attempts that have a report. A restart inside the allocation is not checked again."""
    paths = context.store.paths(run_id)
    try:
        return [
            number for number in attempts(paths.attempts) if os.path.exists(paths.attempt(number).preflight)
        ]
    except (OSError, ClusterrunError):
        return []


def _missing(context: Context, run_id: str, attempt: int | None, reported: list[int]) -> NoReport:
    """Return the error with the reason why the run or the attempt has no report."""
    check = context.store.checked_for(run_id)
    record, status = context.store.read(run_id), context.inquiry().statuses([run_id])[0]
    state, reason = status.state, f": {status.reason}" if status.reason else ""
    if reported:
        message = f"attempt {attempt} of {run_id} has no pre-flight report"
        remedy = f"attempts with a report: {', '.join(map(str, reported))}; to show one: "
        remedy += f"clusterrun report {run_id} --attempt {reported[-1]}"
    elif check and check.by:
        message = f"{run_id} made no check, since {check.by} had checked the same nodes of the allocation"
        remedy = f"clusterrun report {check.by}"
    elif record.spec.preflight in ("", Level.OFF.value):
        message = f"{run_id} was submitted with --preflight off: its nodes were not checked"
        remedy = "clusterrun check checks nodes now; or clusterrun submit --preflight full"
    elif state.ended:
        message = f"{run_id} ended as {state.value} before the check had a verdict{reason}"
        remedy = f"clusterrun status {run_id} shows more"
    elif status.phase is Phase.PREFLIGHT:
        message = f"the check of {run_id} is under way{reason}"
        remedy = f"clusterrun report {run_id}, a moment later"
    else:
        message = f"{run_id} is {state.value}, {status.phase.value}{reason}: its nodes are not checked yet"
        remedy = f"clusterrun wait {run_id}, or look again later"
    return NoReport(message, remedy)


def unfit(status: RunStatus) -> bool:
    """Return whether the run ended because too few of its nodes were fit. A program may exit with 3 too."""
    is_preflight = status.exit_code == ExitCode.UNFIT and status.reason.startswith("pre-flight")
    return status.state is State.FAILED and is_preflight
