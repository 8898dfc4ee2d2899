"""Show the progress of a run, follow it to its end, and print how it ended and what it used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from clusterrun.cli.error_output import say
from clusterrun.cli.terminal import coloured, has_live_line
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import spoken
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Level, Preflight
from clusterrun.model.preflight_report import Grade
from clusterrun.model.record import Attempt, RunRecord, RunStatus
from clusterrun.model.size import gibibytes
from clusterrun.model.states import Phase, State
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context, quiet
from clusterrun.operations.report import report_of, unfit
from clusterrun.operations.wait import RunWait
from clusterrun.reports.efficiency import EndReport

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
            from clusterrun.operations.logs import RunLogs

            reader = RunLogs(context, record.run_id, tell=say)
            print_following(reader)
            status = reader.watch.look()
        else:
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
    from clusterrun.reports.text_report import headline

    status = show_until(
        context, run_id, lambda status: status.state.ended or status.phase not in BEFORE_TRAINING
    )
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
        took = f" after {spoken(status.ended_at - status.started_at)}"
    say(f"{status.name} ({status.run_id}) {status.state.value}{took}")
    if not status.state.ended:
        say(f"  {status.reason}\n  look    clusterrun status {status.run_id}")
        say(f"  cancel  clusterrun cancel {status.run_id}")
        return
    if unfit(status) and _print_unfit(context, status):
        return
    if status.state is not State.COMPLETED:
        _print_failure(context, status)
    elif state := context.store.state(status.run_id):
        say(*(f"  warning {warning}" for warning in state.warnings))
    _explain(context, status)
    say(f"  look    clusterrun status {status.run_id}\n  logs    clusterrun logs {status.run_id}")


def print_usage(context: Context, status: RunStatus) -> None:
    from clusterrun.operations.run_details import end_report

    for head, text in end_report_lines(end_report(context, status)):
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
    separated = [node.node for node in report.nodes if node.role == "separated"]
    # Either end of a link between two nodes may be at fault.
    or_other = f"{report.world[0]}, or " if len(report.world) == len(separated) == 1 else ""
    if bad:
        say(f"  again   clusterrun submit --exclude {apart}{fold(bad)} …  (or {or_other}--spares {len(bad)})")
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


Show = Callable[[RunStatus], None]
LOOK_SECONDS = 0.1
# The end of a check's progress text: the time left in its budget.
LEFT = re.compile(r",? *(\d+(?:\.\d+)?) s left")
BEFORE_TRAINING = (Phase.QUEUED, Phase.STARTING, Phase.PREFLIGHT)


def show_until(context: Context, run_id: str, over: Callable[[RunStatus], bool]) -> RunStatus:
    """Show the progress of a run until ``over`` returns True for its status. Ctrl-C is not caught."""
    live = has_live_line()
    watch = RunWait(context, run_id, quiet if live else say, logs_are_shown=True)
    budget = context.store.read(run_id).spec.preflight_budget or Preflight().budget
    with _display(float(budget)) if live else nullcontext(lambda status: None) as show:
        while not (over(status := watch.look()) or watch.in_vain):
            show(status)
            context.clock.sleep(LOOK_SECONDS)
    return status


@contextmanager
def _display(budget: float) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    console = Console(stderr=True, no_color=not coloured(sys.stderr), highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[phase]}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        ),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, phase="", left="")

        def show(status: RunStatus) -> None:
            time_left = LEFT.search(status.reason)
            progress.update(
                task,
                description=visible(LEFT.sub("", status.reason)),
                total=budget if time_left else None,
                completed=max(0.0, budget - float(time_left[1])) if time_left else 0,
                phase=status.phase.value,
                left=f"{time_left[1]} s left" if time_left else "",
            )

        yield show


NO_STEPS = "not measured: the script does not report its steps (clusterrun.training.progress)"
NO_CHECKPOINTS = (
    "not measured: it is not known which steps were repeated, for the script reports no checkpoints"
)


def end_report_lines(report: EndReport | None) -> list[tuple[str, str]]:
    if report is None:
        return []
    nodes = f" on {report.nodes} nodes" if report.nodes > 1 else ""
    stages = [("check", report.check), ("start", report.start), ("between attempts", report.between)]
    spent = [f"{name} {spoken(seconds)}" for name, seconds in stages if seconds and seconds >= 0.5]
    spent += [f"ranks {spoken(report.ranks)}"] if report.ranks is not None else []
    details = f": {', '.join(spent)}" if spent else ""
    waits_and_use = f"queue {spoken(report.queue)}, allocated {spoken(report.allocated)}{nodes}{details}"
    parts = []
    if report.gpu_joules is not None:
        parts += [f"{_energy(report.gpu_joules)} by the GPUs, as they report"]
    if report.node_joules is not None:
        per_node = f"s ({_energy(report.node_joules / report.nodes)} each)" if report.nodes > 1 else ""
        parts += [f"{_energy(report.node_joules)} by the node{per_node}, as Slurm measured"]
    energy = "; ".join(parts)
    rows = (
        ("time", waits_and_use),
        ("goodput", _goodput(report)),
        ("GPUs", _gpus(report)),
        ("CPUs", _cpus(report)),
        ("memory", _memory(report)),
        ("energy", energy),
        ("enough", " ".join(report.smaller) + " would have been enough" if report.smaller else ""),
    )
    return [(head, text) for head, text in rows if text]


def _energy(joules: float) -> str:
    """Return the energy in kWh, or in Wh if it is less than 0.1 kWh."""
    watt_hours = joules / 3600
    return f"{watt_hours / 1000:.3g} kWh" if watt_hours >= 100 else f"{watt_hours:.2g} Wh"


def _goodput(report: EndReport) -> str:
    if report.ranks is None and report.steps is None:
        return "not measured"
    if report.steps is None:
        return NO_STEPS
    if report.goodput is None or report.counted is None:
        return NO_CHECKPOINTS
    text = (
        f"{100 * report.goodput:.0f} % of the allocated time: {spoken(report.counted)} in steps that counted"
    )
    lost = report.steps - report.counted
    return text + (f", {spoken(lost)} in steps that were lost" if lost >= 0.5 else "")


def _gpus(report: EndReport) -> str:
    if report.gpu_busy_mean is None:
        return ""
    parts = [f"{100 * report.gpu_busy_mean:.0f} % busy on average"]
    if report.gpu_busy_most is not None:
        parts += [f"{100 * report.gpu_busy_most:.0f} % at most"]
    if report.gpu_memory_most is not None:
        parts += [f"memory {100 * report.gpu_memory_most:.0f} % full at most"]
    if report.gpus_idle:
        parts += [f"{report.gpus_idle} of {report.gpus} never busy"]
    return ", ".join(parts)


def _cpus(report: EndReport) -> str:
    if report.cores_mean is None:
        return ""
    request = f", of {report.cores_asked} asked for" if report.cores_asked else ""
    most = f", {report.cores_most:.1f} at most" if report.cores_most is not None else ""
    return f"{report.cores_mean:.1f} cores of a node on average{most}{request}"


def _memory(report: EndReport) -> str:
    if report.memory_most is None:
        return ""
    request = f", of {gibibytes(report.memory_asked)} asked for" if report.memory_asked else ""
    return f"{gibibytes(report.memory_most)} of a node at most{request}"
