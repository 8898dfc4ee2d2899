"""A rehearsal without the launcher: ranks are forked from a Python that has loaded torch.

The watcher in the ranks, its faults, the signals and the verdict are real. Only the launcher is replaced.
A start takes one second instead of ten, so many scripts can be rehearsed.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch._dynamo
import torch.distributed
import torch.utils.data

from clusterrun.model.contract import REHEARSAL_VARIABLE
from clusterrun.model.paths import RunPaths
from clusterrun.rank_hooks.clusterrun_rehearsal.start_watch import RankWatch
from clusterrun.rehearse.rehearsed_runs import RehearsedRuns

torch.set_num_threads(1)
MOST_SECONDS = 120.0


class Ended:
    """The status of an ended run."""

    value = "ENDED"
    state: Any = None
    reason = "started without clusterrun"


class DirectRun:
    """A run: a process that starts the ranks at each request."""

    def __init__(self, pid: int, folder: str) -> None:
        self.pid, self.paths = pid, RunPaths(folder)
        self.job_id = str(pid)
        self.record = SimpleNamespace(coordinator=self.job_id)
        self.over = False

    def status(self) -> Any:
        """Raise, because there is no coordinator."""
        status = Ended()
        status.state = status
        return status


class DirectRuns(RehearsedRuns):
    """Runs that this file starts."""

    def begin(self, name: str, folder: str, orders: dict[str, Any], restarts: int = 3, nodes: int = 0) -> Any:
        run_dir = os.path.join(self.folder, f"run-{name}-{time.monotonic_ns()}")
        os.makedirs(run_dir)
        task = {"run": run_dir, "cwd": folder, "ranks": self.spec.world_size, "restarts": restarts}
        pid = os.fork()
        if not pid:
            supervise(task, json.dumps(orders))
        return DirectRun(pid, run_dir)

    def over(self, run: Any) -> bool:
        run.over = run.over or os.waitpid(run.pid, os.WNOHANG)[0] != 0
        return bool(run.over)

    def end(self, run: Any) -> None:
        if not self.over(run):
            os.killpg(run.pid, signal.SIGKILL)
            os.waitpid(run.pid, 0)
            run.over = True

    def give_notice(self, run: Any) -> None:
        for child in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            if catches(int(child), signal.SIGUSR2):
                os.kill(int(child), signal.SIGUSR2)
        Path(run.paths.attempt(0).notice).write_text("{}")

    def end_all(self) -> None:
        """Do nothing: each run ends where its end is awaited."""


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def supervise(task: Any, orders: str) -> NoReturn:
    """Start the ranks, and again after a failure; then end this process."""
    os.setsid()
    out = os.open(os.path.join(task["run"], "out"), os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        for attempt in range(task["restarts"] + 1):
            folder = os.path.join(task["run"], "attempts", f"{attempt:03d}")
            os.makedirs(folder)
            if all_well([started(task, orders, attempt, folder, rank) for rank in range(task["ranks"])]):
                break
    finally:
        os._exit(0)


def started(task: Any, orders: str, attempt: int, folder: str, rank: int) -> int:
    """Start one rank as a child."""
    pid = os.fork()
    if pid:
        return pid
    os.chdir(task["cwd"])
    os.environ.update(
        {
            REHEARSAL_VARIABLE: orders,
            "RANK": str(rank),
            "WORLD_SIZE": str(task["ranks"]),
            "CLUSTERRUN_ATTEMPT": str(attempt),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20000 + (os.getppid() * 7 + attempt) % 20000),
        }
    )
    watch = RankWatch(json.loads(orders), folder, rank, task["run"])
    sys.addaudithook(watch.audit)
    watch.install(torch)
    code = 0
    atexit._clear()  # what the parent has registered removes its folders
    try:
        exec(
            compile(Path("train.py").read_text(), os.path.join(task["cwd"], "train.py"), "exec"),
            {"__name__": "x"},
        )
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        code = 1
        traceback.print_exc()
        watch.failed(*sys.exc_info())
    atexit._run_exitfuncs()
    watch.at_exit()
    os._exit(code)


def all_well(ranks: list[int]) -> bool:
    """Wait for all ranks; where one fails, end the others, as an agent does."""
    running, well = set(ranks), True
    until = time.monotonic() + MOST_SECONDS
    while running and time.monotonic() < until:
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.discard(pid)
                well = well and status == 0
        if not well:
            break
        time.sleep(0.01)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return well and not running
