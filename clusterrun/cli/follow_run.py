"""Follows a run to its end and prints how it ended."""

from __future__ import annotations

from collections.abc import Callable

from clusterrun.cli.error_output import say
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import spoken
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Level
from clusterrun.model.preflight_report import Grade
from clusterrun.model.record import Attempt, RunRecord, RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.operations.report import report_of, unfit

LAST_LINES = 10
EVIDENCE_LINES = 3
# Lines of a report that are printed. The worst findings come first.
WORST_LINES = 16


def follow_to_end(
    context: Context, record: RunRecord, follow: bool, interrupted: Callable[[str, str], int] | None = None
) -> int:
    """Follow or wait to the end of a run. Ctrl-C calls ``interrupted``, else leaves the run running."""
    try:
        if record.spec.preflight not in ("", Level.OFF.value):
            status = _stay_for_check(context, record.run_id)
            if status.hopeless:
                print_end(context, status)
                return exit_code(status)
        if follow:
            from clusterrun.cli.log_output import print_following
            from clusterrun.operations.logs import LogRequest, RunLogs

            reader = RunLogs(context, record.run_id, LogRequest(), say)
            print_following(reader)
            status = reader.watch.look()
        else:
            from clusterrun.operations.wait import RunWait

            status = RunWait(context, record.run_id, say).wait(None)
    except KeyboardInterrupt:
        return (interrupted or detached)(record.run_id, "logs -f" if follow else "wait")
    print_end(context, status)
    if follow:
        print_usage(context, status)
    return exit_code(status)


def exit_code(status: RunStatus) -> ExitCode:
    if status.state is State.COMPLETED:
        return ExitCode.DONE
    return ExitCode.UNFIT if unfit(status) else ExitCode.FAILED


def _stay_for_check(context: Context, run_id: str) -> RunStatus:
    from clusterrun.cli.progress import past_preflight, show_until
    from clusterrun.reports.text_report import headline

    status = show_until(context, run_id, past_preflight)
    try:
        report = report_of(context, run_id)
    except ClusterrunError:
        return status
    if unfit(status):
        return status  # the end of the run prints the whole report
    say(f"pre-flight {headline(report)}")
    if report.verdict is not Grade.PASS:
        say(f"  more    clusterrun report {run_id}")
    return status


def detached(run_id: str, verb: str) -> int:
    say(f"\ndetached: the run continues. To come back:\n  clusterrun {verb} {run_id}")
    return ExitCode.INTERRUPTED


def print_end(context: Context, status: RunStatus) -> None:
    took = ""
    if status.started_at and status.ended_at:
        took = f" after {spoken(max(0.0, status.ended_at - status.started_at))}"
    say(f"{status.name} ({status.run_id}) {status.state.value}{took}")
    if not status.state.ended:
        say(f"  {status.reason}\n  look    clusterrun status {status.run_id}")
        say(f"  cancel  clusterrun cancel {status.run_id}")
        return
    if unfit(status) and _print_unfit(context, status):
        return
    if status.state is not State.COMPLETED:
        _print_failure(context, status)
    _explain(context, status)
    say(f"  look    clusterrun status {status.run_id}\n  logs    clusterrun logs {status.run_id}")


def print_usage(context: Context, status: RunStatus) -> None:
    from clusterrun.cli import end_report
    from clusterrun.operations.end_report import end_report as gathered

    for head, text in end_report.lines(gathered(context, status)):
        say(f"  {head:<7} {text}")


def _print_unfit(context: Context, status: RunStatus) -> bool:
    """Print the worst findings and how to continue. Return False if there is no report."""
    from clusterrun.reports.text_report import screen

    try:
        report, spec = report_of(context, status.run_id), context.store.read(status.run_id).spec
        state = context.store.state(status.run_id)
    except ClusterrunError:
        return False
    lines = screen(report)
    for line in lines[:WORST_LINES]:
        say(f"  {line.text}" if line.text else "")
    say("" if len(lines) <= WORST_LINES else "  …")
    bad = sorted({*report.excluded, *(state.excluded if state else ())})
    apart = "" if "/" in spec.exclude or not spec.exclude else f"{spec.exclude},"
    if bad:
        say(f"  again   clusterrun submit --exclude {apart}{fold(bad)} …  (or --spares {len(bad)})")
    say(f"  more    clusterrun report {status.run_id}")
    return True


def _explain(context: Context, status: RunStatus) -> None:
    from clusterrun.operations.diagnose import of_ended

    if status.state is State.CANCELLED or unfit(status):
        return
    try:
        diagnosis = of_ended(context, status, context.store.state(status.run_id))
    except (ClusterrunError, OSError):
        return  # the run directory says no more than the status does
    if diagnosis.verdict in (Verdict.NOTHING, Verdict.NOT_RUNNING):
        return
    say(f"  why     {diagnosis.message}")
    for line in diagnosis.evidence[:EVIDENCE_LINES]:
        say(f"          {line}")
    if diagnosis.remedy:
        say(f"  remedy  {diagnosis.remedy}")


def _print_failure(context: Context, status: RunStatus) -> None:
    if status.reason:
        say(f"  {status.reason}")
    state = context.store.state(status.run_id)
    attempts = [a for a in state.attempts if a.failure] if state else []
    if not attempts or not attempts[-1].failure:
        if status.state is not State.CANCELLED:
            _print_job_output(context, status)
        return
    if attempts[-1].failure.why not in status.reason:
        say(f"  first failure: {attempts[-1].failure.why}")
    say(*failure_lines(attempts[-1]))
    if status.world_size > 1:
        say("  all other ranks were ended because of it: errors that they print after that are consequences")


def failure_lines(attempt: Attempt) -> list[str]:
    """Return the traceback of the first failure, else its last lines."""
    failure = attempt.failure
    if failure is None:
        return []
    printed = failure.traceback.rstrip("\n").split("\n") if failure.traceback else list(failure.last_lines)
    name = "its traceback" if failure.traceback else "its last lines"
    printed_lines = printed if failure.traceback else printed[-LAST_LINES:]
    return [f"  {name}:", *(f"    {line}" for line in printed_lines)] if printed_lines else []


def _print_job_output(context: Context, status: RunStatus) -> None:
    """Print the end of the batch step's output. It may hold the reason if no rank failed."""
    path = context.store.paths(status.run_id).job_output
    try:
        with open(path, "rb") as file:
            printed = file.read()[-4096:].decode("utf-8", "surrogateescape").splitlines()[-LAST_LINES:]
    except FileNotFoundError:
        return
    if not printed and status.state is State.FAILED and status.started_at is None:
        say(
            f"  nothing was written to {path}: the first node of the job\n"
            "  does not see that folder or cannot write there (a full disk, a quota, read-only),"
            " or a line of --setup ended the script"
        )
    if printed:
        say("\n".join([f"  the end of {path}:", *(f"    {line}" for line in printed)]))
