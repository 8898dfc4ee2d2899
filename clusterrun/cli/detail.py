"""One run in detail: what was asked, each attempt, the failure, where things are, what to type next."""

from __future__ import annotations

import shlex

from clusterrun.cli.ending import words
from clusterrun.cli.terminal import local_time
from clusterrun.model.duration import spoken
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.hostlist import fold
from clusterrun.model.record import Attempt, RunRecord, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.model.visible import visible
from clusterrun.verbs.desk import Desk


def show(desk: Desk, status: RunStatus) -> None:
    """Print ``status`` and what the run directory adds to it."""
    try:
        record, state = desk.store.read(status.run_id), desk.store.state(status.run_id)
    except ClusterrunError:
        record, state = None, None
    lines = [f"{name:<10} {value}" for name, value in _facts(status, record) if value]
    for attempt in state.attempts if state else ():
        lines += _attempt(attempt)
    lines += ["", *(f"{what:<10} clusterrun {line} {status.run_id}" for what, line in _next(status))]
    print("\n".join(visible(line) for line in lines))


def _facts(status: RunStatus, record: RunRecord | None) -> list[tuple[str, str]]:
    command = shlex.join(record.spec.command) if record else ""
    return [
        ("run", status.run_id),
        ("name", status.name),
        ("state", f"{status.state.value}, {status.phase.value}"),
        ("reason", status.reason),
        ("command", command),
        ("in", record.spec.cwd if record else ""),
        ("job", f"{status.job_id} ({status.cluster})" if status.job_id else ""),
        ("size", _size(status)),
        ("nodes", status.nodelist),
        ("uses", _use(status)),
        ("submitted", local_time(status.submitted_at or None)),
        ("started", local_time(status.started_at)),
        ("ended", local_time(status.ended_at)),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        ("files", status.run_dir),
    ]


def _size(status: RunStatus) -> str:
    if not status.nodes:
        return ""
    each = status.world_size // status.nodes
    kind = "GPU" if status.gpus_per_node else "CPU rank"
    size = f"{status.nodes} node{_s(status.nodes)} × {each} {kind}{_s(each)}"
    return size + (f" = {status.world_size} ranks" if status.world_size > 1 else "")


def _s(count: int) -> str:
    return "s" if count > 1 else ""


def _use(status: RunStatus) -> str:
    """What a live run on this machine takes of it."""
    pid = status.job_id.partition(".")[0]
    if status.cluster != Cluster.LOCAL.value or status.state is not State.RUNNING or not pid:
        return ""
    import psutil

    try:
        family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        seconds = sum(sum(one.cpu_times()[:2]) for one in family)
        memory = sum(one.memory_info().rss for one in family)
    except psutil.Error:  # one of them ended while we looked, or is not ours to look at
        return ""
    return f"{len(family)} processes, {spoken(seconds)} of CPU time, {memory / 2**30:.1f} GiB of memory"


def _attempt(attempt: Attempt) -> list[str]:
    took = f" after {spoken(max(0.0, attempt.ended_at - attempt.started_at))}" if attempt.ended_at else ""
    outcome = f": {attempt.outcome}{took}" if attempt.outcome or took else ""
    reason = f" ({attempt.reason})" if attempt.reason else ""
    began = f"{local_time(attempt.started_at)}, on {fold(attempt.nodes)}"
    lines = ["", f"attempt {attempt.epoch}{reason}, {began}{outcome}"]
    if attempt.failure:
        lines += [
            f"  first failure, {local_time(attempt.failure.at)}: {attempt.failure.why}",
            *words(attempt),
        ]
    return lines


def _next(status: RunStatus) -> list[tuple[str, str]]:
    if status.state.ended:
        return [("logs", "logs"), ("errors", "logs --stream err")]
    return [("follow", "logs -f"), ("wait", "wait"), ("cancel", "cancel")]
