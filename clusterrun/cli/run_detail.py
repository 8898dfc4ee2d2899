"""Print a run in detail: its options, attempts, failure, files and the commands to type next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from clusterrun.cli.follow_run import end_report_lines, failure_lines
from clusterrun.cli.main import COMMANDS
from clusterrun.cli.status_view import DECISIONS
from clusterrun.cli.terminal import local_time, size_words
from clusterrun.model.duration import clock_time, spoken
from clusterrun.model.hostlist import fold
from clusterrun.model.record import Attempt, RunState, RunStatus
from clusterrun.model.size import gibibytes
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.operations.run_details import RunDetails, run_details
from clusterrun.reports.view import View, ViewField


def show(context: Context, status: RunStatus) -> None:
    details = run_details(context, status)
    attempts = details.state.attempts if details.state else ()
    lines = DETAILS.details(details, context.clock.now())
    if rows := end_report_lines(details.end_report):
        lines += ["", "end report", *(f"  {head:<10} {text}" for head, text in rows)]
    checks = {attempt.epoch: check for attempt, check in zip(attempts, details.checks)}
    lines += lineage(attempts, lambda epoch: checks[epoch])
    commands = _next(status, any(details.checks))
    lines += ["", *(f"{purpose:<10} clusterrun {line} {status.run_id}" for purpose, line in commands)]
    print("\n".join(visible(line) for line in lines))
    if details.record and status.state.ended:
        from clusterrun.operations.copied_paths import moved_back
        from clusterrun.script.submit_again import line as again

        paths = context.store.paths(status.run_id)
        # Its line breaks are parts of quoted words, and a shell must read them as such.
        print(f"{'again':<10} {again(moved_back(details.record.spec, paths))}")
        if details.record.spec.environment:
            where = visible(paths.orders)
            print(f"{'':<10} --env takes the values of this shell; those of the run are in {where}")


def _size(status: RunStatus) -> str:
    if not status.nodes:
        return ""
    ranks_per_node = status.world_size // status.nodes
    return size_words(status.nodes, ranks_per_node, status.gpu_type, status.gpus_per_node)


def _use(status: RunStatus) -> str:
    pid = status.job_id.partition(".")[0]
    if status.cluster != Cluster.LOCAL.value or status.state is not State.RUNNING or not pid:
        return ""
    try:
        import psutil
    except ImportError:  # a client that was copied here has no compiled packages
        return ""
    try:
        family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        seconds = sum(sum(process.cpu_times()[:2]) for process in family)
        memory = sum(process.memory_info().rss for process in family)
    except psutil.Error:  # a process ended meanwhile, or belongs to another user
        return ""
    return f"{len(family)} processes, {spoken(seconds)} of CPU time, {gibibytes(memory)} of memory"


def _next(status: RunStatus, checked: bool) -> list[tuple[str, str]]:
    report = [("check", "report")] if checked else []
    if status.state is State.COMPLETED:
        return [("logs", "logs"), *report]
    why = [("why", "diagnose")] if "diagnose" in COMMANDS else []
    if status.state.ended:
        return [*why, ("logs", "logs"), ("errors", "logs --stream err"), *report]
    why = why if status.phase is Phase.TRAINING else []
    return [("follow", "logs -f"), *why, ("wait", "wait"), ("cancel", "cancel"), *report]


def lineage(attempts: Sequence[Attempt], check: Callable[[int], str]) -> list[str]:
    """Return lines for every attempt, oldest first. Only the newest failure has its last output."""
    failed = max((attempt.epoch for attempt in attempts if attempt.failure), default=-1)
    has_several_jobs = len({attempt.job_id for attempt in attempts}) > 1
    return [
        line
        for attempt in attempts
        for line in _lines(attempt, check(attempt.epoch), has_several_jobs, attempt.epoch == failed)
    ]


def _lines(attempt: Attempt, check: str, has_several_jobs: bool, newest_failure: bool) -> list[str]:
    job = f" in job {attempt.job_id}" if has_several_jobs and attempt.job_id else ""
    reason = attempt.reason or attempt.cause
    where = f", on {fold(attempt.nodes)}" if attempt.nodes else ""
    reason = f" ({reason})" if reason else ""
    head = f"attempt {attempt.epoch}{reason}{job}, {_times(attempt)}{where}"
    lines = ["", head + (f": {attempt.outcome}" if attempt.outcome else "")]
    lines += [f"  pre-flight {check}"] if check else []
    reached = progress_text(attempt.step, attempt.checkpoint)
    lines += [f"  reached    {reached}"] if reached else []
    if attempt.failure:
        lines += [f"  first failure, {local_time(attempt.failure.at)}: {attempt.failure.why}"]
        meaning = DECISIONS.get(attempt.decision, "")
        decision = f"{attempt.decision}: {meaning}" if meaning else attempt.decision
        lines += [f"  decision   {decision}"] if decision else []
        lines += failure_lines(attempt) if newest_failure else []
    return lines


def _times(attempt: Attempt) -> str:
    began = local_time(attempt.started_at)
    if attempt.ended_at is None:
        return f"since {began}"
    took = spoken(attempt.ended_at - attempt.started_at)
    return f"{began} to {clock_time(attempt.ended_at, attempt.started_at)} ({took})"


def progress_text(step: int, checkpoint: int) -> str:
    numbers = (("step", step), ("checkpoint", checkpoint))
    return ", ".join(f"{name} {number}" for name, number in numbers if number >= 0)


def left_out(state: RunState) -> list[str]:
    """Return the excluded nodes that no later job of the run uses again."""
    used = set(state.spares)
    # An attempt that failed may have lost the node: it was excluded then, and is not used again.
    if state.attempts and state.attempts[-1].outcome in ("", State.COMPLETED.value):
        used.update(state.attempts[-1].nodes)
    return [node for node in state.excluded if node not in used]


def _state_column(name: str, text: Callable[[RunState], str]) -> ViewField:
    """Return a line from the coordinator's state. It is empty if there is no state."""
    return _line(name, lambda details: text(details.state) if details.state else "")


def _line(name: str, text: Callable[[RunDetails], str]) -> ViewField:
    return ViewField(name, kind=None, header=name, cell=lambda details, now: text(details))


def _heartbeat(details: RunDetails, now: float) -> str:
    if details.state is None or details.status.state.ended:
        return ""
    ago = spoken(now - details.state.updated_at)
    return f"{ago} ago, from its coordinator on {details.state.host}"


DETAILS = View(
    "One run.",
    _line("run", lambda details: details.status.run_id),
    _line("name", lambda details: details.status.name),
    _line("state", lambda details: f"{details.status.state.value}, {details.status.phase.value}"),
    _line("reason", lambda details: details.status.reason),
    _line("error", lambda details: details.status.error),
    _line("command", lambda details: shlex.join(details.record.spec.command) if details.record else ""),
    _line("in", lambda details: details.record.spec.cwd if details.record else ""),
    _state_column("python", lambda state: state.python),
    _line(
        "job",
        lambda details: (
            f"{details.status.job_id} ({details.status.cluster})" if details.status.job_id else ""
        ),
    ),
    _line("size", lambda details: _size(details.status)),
    _line("nodes", lambda details: details.status.nodelist),
    _line("progress", lambda details: progress_text(details.status.step, details.status.checkpoint)),
    _line("tracker", lambda details: "\n".join(f"{link.tool} {link.url}" for link in details.trackers)),
    _line("uses", lambda details: _use(details.status)),
    _line("used", lambda details: details.used),
    _line("submitted", lambda details: local_time(details.status.submitted_at or None)),
    _line("started", lambda details: local_time(details.status.started_at)),
    _line("ended", lambda details: local_time(details.status.ended_at)),
    _line(
        "exit code", lambda details: "" if details.status.exit_code is None else str(details.status.exit_code)
    ),
    _state_column("left out", lambda state: fold(left_out(state))),
    _state_column("spares", lambda state: fold(state.spares)),
    ViewField("last heartbeat", kind=None, header="last heartbeat", cell=_heartbeat),
    _line(
        "warning",
        lambda details: "\n".join(
            (*(details.state.warnings if details.state else ()), *details.trained_alone, *details.undelivered)
        ),
    ),
    _line("files", lambda details: details.status.run_dir),
    _line("log files", lambda details: details.log_folder),
)
