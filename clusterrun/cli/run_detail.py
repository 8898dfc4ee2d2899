"""One run in detail: what was asked, each attempt, the failure, where things are, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from clusterrun.cli.follow_run import failure_lines
from clusterrun.cli.main import COMMANDS
from clusterrun.cli.terminal import local_time, size_words
from clusterrun.logs.attempt_logs import attempts
from clusterrun.logs.tracker_links import tracker_links
from clusterrun.model.duration import clock_time, spoken
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.hostlist import fold
from clusterrun.model.record import Attempt, RunRecord, RunState, RunStatus
from clusterrun.model.size import gibibytes
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.reports.text_report import headline
from clusterrun.runs import usage_files

T = TypeVar("T")


def show(context: Context, status: RunStatus) -> None:
    record = _readable(context.store.read, status.run_id)
    state = _readable(context.store.state, status.run_id)
    lines = [f"{name:<10} {value}" for name, value in _facts(context, status, record, state) if value]
    lines += _end_report(context, status)
    lines += lineage(state.attempts if state else (), partial(_check, context, status.run_id))
    checked = any("  pre-flight" in line for line in lines)
    lines += ["", *(f"{what:<10} clusterrun {line} {status.run_id}" for what, line in _next(status, checked))]
    if record and status.state.ended:
        from clusterrun.script.submit_again import line as again

        lines.append(f"{'again':<10} {again(record.spec)}")
    print("\n".join(visible(line) for line in lines))


def _end_report(context: Context, status: RunStatus) -> list[str]:
    if not status.state.ended:
        return []
    from clusterrun.cli import end_report
    from clusterrun.operations.end_report import end_report as gathered

    told = end_report.lines(gathered(context, status))
    return ["", "end report", *(f"  {head:<10} {said}" for head, said in told)] if told else []


def _readable(read: Callable[[str], T | None], run_id: str) -> T | None:
    """What can be read of a run: why the rest cannot stands in the reason."""
    try:
        return read(run_id)
    except ClusterrunError:
        return None


def _facts(
    context: Context, status: RunStatus, record: RunRecord | None, state: RunState | None
) -> list[tuple[str, str]]:
    return [
        ("run", status.run_id),
        ("name", status.name),
        ("state", f"{status.state.value}, {status.phase.value}"),
        ("reason", status.reason),
        ("command", shlex.join(record.spec.command) if record else ""),
        ("in", record.spec.cwd if record else ""),
        ("python", state.python if state else ""),
        ("job", f"{status.job_id} ({status.cluster})" if status.job_id else ""),
        ("size", _size(status)),
        ("nodes", status.nodelist),
        ("progress", progress_text(status.step, status.checkpoint)),
        *(("tracker", f"{one.tool} {one.url}") for one in tracker_links(context.store.paths(status.run_id))),
        ("uses", _use(status)),
        ("used", "" if status.state.ended else _used(context, record, state)),
        ("submitted", local_time(status.submitted_at or None)),
        ("started", local_time(status.started_at)),
        ("ended", local_time(status.ended_at)),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        *_coordinator_news(context, status, state),
        ("files", status.run_dir),
        ("log files", _logs(context, status.run_id)),
    ]


def _coordinator_news(context: Context, status: RunStatus, state: RunState | None) -> list[tuple[str, str]]:
    if state is None:
        return []
    ago = spoken(max(0.0, context.clock.now() - state.updated_at))
    heard = f"{ago} ago, from its coordinator on {state.host}"
    return [
        ("left out", fold(state.excluded)),
        ("spares", fold(state.spares)),
        ("last heartbeat", "" if status.state.ended else heard),
        *(("warning", one) for one in (*state.warnings, *_ranks_that_trained_alone(context, status, state))),
    ]


def _ranks_that_trained_alone(context: Context, status: RunStatus, state: RunState) -> tuple[str, ...]:
    if status.state is not State.COMPLETED:
        return ()
    from clusterrun.operations.postmortem_input import left_alone  # with it comes all that diagnoses

    return left_alone(context.store.paths(status.run_id), state)


def _logs(context: Context, run_id: str) -> str:
    paths = context.store.paths(run_id)
    try:
        known = attempts(paths.attempts)
    except ClusterrunError as error:
        return error.seen
    return paths.attempt(known[-1]).folder if known else ""


def _check(context: Context, run_id: str, epoch: int) -> str:
    try:
        report = context.store.report(run_id, epoch)
    except ClusterrunError as error:
        return error.seen
    return headline(report) if report else ""


def _size(status: RunStatus) -> str:
    if not status.nodes:
        return ""
    each = status.world_size // status.nodes
    return size_words(status.nodes, each, status.gpu_type, status.gpus_per_node)


def _use(status: RunStatus) -> str:
    pid = status.job_id.partition(".")[0]
    if status.cluster != Cluster.LOCAL.value or status.state is not State.RUNNING or not pid:
        return ""
    try:
        import psutil
    except ImportError:  # a client that was carried over has nothing that is compiled
        return ""
    try:
        family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        seconds = sum(sum(one.cpu_times()[:2]) for one in family)
        memory = sum(one.memory_info().rss for one in family)
    except psutil.Error:  # one of them ended while we looked, or is not ours to look at
        return ""
    return f"{len(family)} processes, {spoken(seconds)} of CPU time, {gibibytes(memory)} of memory"


def _used(context: Context, record: RunRecord | None, state: RunState | None) -> str:
    if record is None or state is None or not state.attempts:
        return ""
    attempt = context.store.paths(record.run_id).attempt(state.attempts[-1].epoch)
    return usage_files.summary(usage_files.newest(attempt, record.spec.nodes + record.spec.spares))


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
    """Every attempt, oldest first; the last words of a failure only where no newer attempt failed."""
    failed = max((one.epoch for one in attempts if one.failure), default=-1)
    jobs = len({one.job_id for one in attempts}) > 1
    return [line for one in attempts for line in _lines(one, check(one.epoch), jobs, one.epoch == failed)]


def _lines(attempt: Attempt, check: str, jobs: bool, newest_failure: bool) -> list[str]:
    job = f" in job {attempt.job_id}" if jobs and attempt.job_id else ""
    reason = attempt.reason or attempt.cause
    where = f", on {fold(attempt.nodes)}" if attempt.nodes else ""
    head = f"attempt {attempt.epoch}{f' ({reason})' if reason else ''}{job}, {_times(attempt)}{where}"
    lines = ["", head + (f": {attempt.outcome}" if attempt.outcome else "")]
    lines += [f"  pre-flight {check}"] if check else []
    reached = progress_text(attempt.step, attempt.checkpoint)
    lines += [f"  reached    {reached}"] if reached else []
    if attempt.failure:
        lines += [f"  first failure, {local_time(attempt.failure.at)}: {attempt.failure.why}"]
        lines += failure_lines(attempt) if newest_failure else []
    return lines


def _times(attempt: Attempt) -> str:
    began = local_time(attempt.started_at)
    if attempt.ended_at is None:
        return f"since {began}"
    took = spoken(max(0.0, attempt.ended_at - attempt.started_at))
    return f"{began} to {clock_time(attempt.ended_at, attempt.started_at)} ({took})"


def progress_text(step: int, checkpoint: int) -> str:
    said = (("step", step), ("checkpoint", checkpoint))
    return ", ".join(f"{name} {number}" for name, number in said if number >= 0)
