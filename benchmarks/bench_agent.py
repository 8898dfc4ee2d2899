"""Measure cost and speed of the nodes' side: idle agents, 1,250 joining agents, kills and a cancel."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import cpu_seconds
from clusterrun import proc
from tests.coordinator.runs import ROOT, Run, runs, until

MANY = 1250
STRANGERS = 2500
UP = ["/bin/sh", "-c", "echo up; exec sleep 300"]
BUSY = ["/bin/sh", "-c", "echo up; while :; do :; done"]


def main() -> None:
    """Print every figure beside its goal."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder, runs(Path(folder)) as make:
        at_rest(make(BUSY, nodes=1, ranks=2))
        kill_of_an_agent(make(["/bin/sh", "-c", "sleep 400 & echo up; exec sleep 300"], nodes=1, ranks=8))
        cancel_with_a_stopped_rank(make(UP, nodes=2, ranks=2))
        many_join(
            make(UP, nodes=MANY, ranks=8, launch=fakes(folder, "quiet")), Path(folder, "quiet"), 0, "≤ 3 s"
        )
        run = make(UP, nodes=MANY, ranks=8, launch=fakes(folder, "beset"))
        many_join(run, Path(folder, "beset"), STRANGERS, "≤ 6 s, 0 again, ≤ 100 MiB")


def said(what: str, figure: str, goal: str) -> None:
    print(f"{what:58} {figure:38} goal {goal}", flush=True)


def fakes(folder: str, name: str) -> tuple[str, ...]:
    program = Path(__file__).with_name("many_agents.py")
    return ("/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, str(program), "agents", f"{folder}/{name}")


def resident(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()
    return int(fields[0]) / 1024


def at_rest(run: Run, seconds: float = 30.0) -> None:
    run.start()
    run.running(2)
    pids = {"agent": run.agents()[0], "shim": run.shims()[0], "coordinator": run.coordinating()}
    time.sleep(11)  # past the eager look at the logs
    before = {name: cpu_time(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    for name, pid in pids.items():
        share = (cpu_time(pid) - before[name]) / seconds
        goal = "≤ 20 MiB, ≤ 0.2 %" if name == "agent" else "-"
        said(f"{name} while ranks compute", f"{resident(pid):.1f} MiB, {share:.3%} of a core", goal)
    run.coordinator.terminate()
    run.wait()


def cpu_time(pid: int) -> float:
    """Return the CPU seconds of a process in nanoseconds, finer than the ticks of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def kill_of_an_agent(run: Run) -> None:
    run.start()
    run.running(8)
    pids = [process.pid for process in run.marked()]
    began = time.monotonic()
    os.kill(run.agents()[0], signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in pids), "ranks dead", 10.0)
    said(f"SIGKILL of an agent → {len(pids)} processes dead", f"{time.monotonic() - began:.3f} s", "≤ 2 s")
    run.coordinator.terminate()
    run.wait(60)


def gone(pid: int) -> bool:
    process = proc.find(pid)
    return process is None or process.state in proc.GONE_STATES


def cancel_with_a_stopped_rank(run: Run) -> None:
    run.start()
    ranks = run.running(4)
    os.kill(ranks[0].pid, signal.SIGSTOP)
    began = time.monotonic()
    Path(run.paths.cancel).touch()
    run.wait()
    until(lambda: not run.left(), "nothing left")
    said("cancel with one stopped rank → nothing left", f"{time.monotonic() - began:.2f} s", "≤ 10 s")


def many_join(run: Run, result: Path, strangers: int, goal: str) -> None:
    entry = result.with_suffix(".entry")
    beset = None
    if strangers:
        run.environment["STRANGERS"] = str(entry)
        program = str(Path(__file__).with_name("many_agents.py"))
        beset = subprocess.Popen([sys.executable, program, "strangers", str(entry), str(strangers)])
    try:
        run.start()
        until(result.exists, "all joined", 60.0)
        time.sleep(0.2)
        joined = json.loads(result.read_text())
        memory = resident(run.coordinating())
        figure = f"{joined['seconds']:.2f} s, {joined['again']} again, {memory:.0f} MiB"
        said(f"{run.orders.nodes} agents join beside {strangers} strangers", figure, goal)
        time.sleep(6)
        before = cpu_seconds(run.coordinating())
        time.sleep(20)
        share = (cpu_seconds(run.coordinating()) - before) / 20
        goal = "-" if strangers else "≤ 2 %"
        said(
            f"coordinator of {run.orders.nodes} nodes, {strangers} strangers", f"{share:.2%} of a core", goal
        )
        began = time.monotonic()
        run.coordinator.terminate()
        run.wait(60)
        said(f"end of {run.orders.nodes} nodes after TERM", f"{time.monotonic() - began:.2f} s", "-")
    finally:
        if beset:
            beset.kill()
            beset.wait()


if __name__ == "__main__":
    main()
