"""End every process of a run on this node and name those that cannot be ended; knows no network.

The steps are: stop all, search again until no new process appears, kill all, and wait until they end. A
program that forks while it is being killed does not escape. A process in an uninterruptible wait cannot be
killed. It is named after a bounded wait.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from clusterrun import proc
from clusterrun.model import contract
from clusterrun.model.frozen import frozen

_FREEZE_ROUNDS = 50
_LOOK_SECONDS = 0.005


@frozen
class KillTarget:
    """The processes to end."""

    run_id: str
    epoch: int  # of this epoch and earlier ones
    node: str  # started on this node


def below(root: int) -> list[proc.Process]:
    """Return the live descendants of ``root``. A subreaper's descendants cannot leave it."""
    return [process for process in proc.descendants(root) if process.state not in proc.GONE_STATES]


def marked(target: KillTarget, sessions: frozenset[int] = frozenset()) -> list[proc.Process]:
    """Return the processes with the mark of ``target`` or in one of ``sessions``, whatever their parent."""
    spared = {os.getpid(), *proc.ancestors(os.getpid())}
    matching = []
    for process in proc.processes():
        if process.pid in spared or process.state in proc.GONE_STATES:
            continue
        if process.session in sessions or _is_marked(process.pid, target):
            matching.append(process)
    return matching


def everywhere(target: KillTarget, sessions: frozenset[int] = frozenset()) -> list[proc.Process]:
    descendants = below(os.getpid())
    pids = {process.pid for process in descendants}
    return descendants + [process for process in marked(target, sessions) if process.pid not in pids]


def _is_marked(pid: int, target: KillTarget) -> bool:
    environment = proc.environment(pid)
    run_id, _, epoch = environment.get(contract.MARKER_VARIABLE, "").rpartition(".")
    if run_id != target.run_id or not epoch.isdigit() or int(epoch) > target.epoch:
        return False
    return environment.get(contract.NODE_NAME_VARIABLE, target.node) == target.node


def sweep(
    find: Callable[[], list[proc.Process]], reap: Callable[[], None], seconds: float
) -> tuple[str, ...]:
    """End all processes that ``find`` returns, within ``seconds``. Return descriptions of the remaining ones.

    ``reap`` is called repeatedly to reap the ended children of this process.
    """
    until = time.monotonic() + seconds
    frozen_processes: dict[int, proc.Process] = {}
    for _ in range(_FREEZE_ROUNDS):
        fresh = [process for process in find() if process.pid not in frozen_processes]
        if not fresh or time.monotonic() > until:
            break
        for process in fresh:
            send(process, signal.SIGSTOP)
            frozen_processes[process.pid] = process
    for process in frozen_processes.values():
        send(process, signal.SIGKILL)
    pause = _LOOK_SECONDS
    while True:
        reap()
        remaining = find()
        if not remaining or time.monotonic() > until:
            return tuple(
                f"{process.pid} {proc.described(proc.find(process.pid) or process)}" for process in remaining
            )
        for process in remaining:
            send(process, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def send(process: proc.Process, number: int) -> None:
    """Signal exactly this process, and never a later process with the same number."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3
        with suppress(ProcessLookupError, PermissionError):
            if _is_still(process):
                os.kill(process.pid, number)
        return
    try:
        with suppress(ProcessLookupError, PermissionError):
            if _is_still(process):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _is_still(process: proc.Process) -> bool:
    now = proc.find(process.pid)
    return now is not None and now.started == process.started
