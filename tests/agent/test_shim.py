"""The laws of the shim: whatever becomes of the agent, nothing of the run is left on the node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterrun import proc
from tests.coordinator.runs import ROOT, until

LIMIT = 60.0
SHIM = (
    "import os, sys, time, signal\n"
    "from clusterrun.agent.shim import under_shim\nfrom clusterrun.runtime.event_loop import steady\n"
    "def live(seconds):\n return f'until {steady() + seconds}\\n'.encode()\n"
)
HIDDEN = (
    "def hidden():\n"
    " said, say = os.pipe()\n"
    " if os.fork() == 0:\n"
    "  os.setsid()\n"
    "  if os.fork(): os._exit(0)\n"
    "  print(os.getpid(), flush=True)\n"
    "  os.write(say, b'.')\n"
    "  os.execve('/bin/sleep', ['sleep', '600'], {})\n"
    " os.read(said, 1)\n"
)


@contextmanager
def shim(agent: str, awake: float = 10.0, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a shim whose agent runs ``agent``, the body of a function of (lease, shim), after ``before``."""
    body = "".join(f" {line}\n" for line in agent.splitlines())
    patient = f"from clusterrun.model import contract\ncontract.AWAKE_SECONDS = {awake}\n"
    start = "sys.exit(under_shim('n1', agent))"
    script = f"{SHIM}{patient}{HIDDEN}{before}def agent(lease, shim):\n{body}{start}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def child(process: subprocess.Popen[str]) -> int:
    return next(p.pid for p in proc.descendants(process.pid) if p.parent == process.pid)


def lives(pid: int) -> bool:
    process = proc.find(pid)
    return process is not None and process.state not in proc.GONE_STATES


@pytest.mark.parametrize("end, code", [
    ("return 0", 0),
    ("return 7", 7),
    ("sys.exit(3)", 3),
    ("os.kill(os.getpid(), 9)", 137),
    ("os.kill(os.getpid(), signal.SIGTERM)", 143),
    ("1 / 0", 1),
])  # fmt: skip
def test_the_shim_passes_on_the_agents_exit_and_ends_its_leftovers(end: str, code: int) -> None:
    with shim(f"hidden()\n{end}") as process:
        orphan = int(line(process))
        _, message = process.communicate(timeout=LIMIT)
        assert process.returncode == code and ("ZeroDivisionError" in message) == (end == "1 / 0")
        assert not lives(orphan)


@pytest.mark.parametrize("state", ["", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_the_shim_kills_everything_when_the_lease_expires_even_if_the_agent_is_frozen(state: str) -> None:
    agent = f"hidden()\nos.write(lease, live(0.5))\nprint('on', flush=True)\n{state}\ntime.sleep(600)"
    with shim(agent) as process:
        began = time.monotonic()
        arguments = {line(process), line(process)}  # the orphan says its number when it likes
        _, message = process.communicate(timeout=LIMIT)
        assert process.returncode == 1 and time.monotonic() - began > 0.4
        assert message == "n1: the lease ran out; all processes of the run on this node are killed\n"
        (orphan,) = arguments - {"on"}
        assert not lives(int(orphan))


def test_a_lease_that_is_renewed_does_not_run_out() -> None:
    agent = "os.write(lease, live(2.0) + live(60.0))\ntime.sleep(2.5)\nreturn 5"
    with shim(agent) as process:
        process.communicate(timeout=LIMIT)
        assert process.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGABRT])
def test_a_signal_to_the_shim_reaches_the_agent(number: signal.Signals) -> None:
    handler = f"signal.signal({int(number)}, lambda *_: os._exit(42))"
    # A handler in Python runs between two of its instructions, and not while one sleeps: many short sleeps.
    agent = f"{handler}\nprint('ready', flush=True)\nwhile True: time.sleep(0.02)"
    with shim(agent) as process:
        assert line(process) == "ready"
        process.send_signal(number)
        process.communicate(timeout=LIMIT)
        assert process.returncode == 42


def test_the_agent_sees_the_end_of_the_shim() -> None:
    with shim(
        "print(os.getpid(), flush=True)\nos.read(shim, 1)\nprint('seen', flush=True)\ntime.sleep(600)"
    ) as process:
        agent = int(line(process))
        assert agent == child(process)
        process.kill()
        assert line(process) == "seen"
        os.kill(agent, signal.SIGKILL)


def test_marked_processes_outside_the_shims_lineage_are_ended_only_after_ranks_ran() -> None:
    environment = {**os.environ, "CLUSTERRUN_STEP": "run-x.0", "CLUSTERRUN_NODE_NAME": "n1"}
    outside = subprocess.Popen(["sleep", "600"], env=environment)
    try:
        until(lambda: proc.environment(outside.pid).get("CLUSTERRUN_STEP"), "the program executed")
        with shim("os.kill(os.getpid(), 9)") as process:
            process.communicate(timeout=LIMIT)
        assert outside.poll() is None
        with shim("os.write(lease, b'run run-x\\n')\nos.kill(os.getpid(), 9)") as process:
            process.communicate(timeout=LIMIT)
        assert outside.wait(LIMIT) == -9
    finally:
        outside.kill()
        outside.wait()


LEAPS = (
    "from clusterrun.agent import shim as module\n"
    "slept = [0.0]\n"
    "module.steady = lambda: steady() + slept[0]\n"
)
"""The clock of a shim that stood still for so long, without the wait."""
SLEEPS_WHEN_TOLD = LEAPS + (
    "def clock():\n"
    " with open({path!r}) as told: slept[0] = float(told.read() or 0.0)\n"
    " return steady() + slept[0]\n"
    "module.steady = clock\n"
)
STOPS = (
    "hidden()\nos.write(lease, live(300.0))\n"
    "signal.signal(signal.SIGUSR2, lambda *_: os.write(lease, live(6000.0)))\n"
    "print('on', flush=True)\nwhile True: time.sleep(0.02)"
)


def state_of(pid: int) -> str:
    process = proc.find(pid)
    return process.state if process else ""


@contextmanager
def slept_through_its_lease(folder: Path, awake: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a shim that was stopped until its lease expired and then continued, and the pid of its orphan."""
    path = folder / "slept"
    path.write_text("0")
    with shim(STOPS, awake, SLEEPS_WHEN_TOLD.format(path=str(path))) as process:
        (orphan,) = {line(process), line(process)} - {"on"}
        path.write_text("600")
        yield process, int(orphan)


def test_a_node_that_stood_still_stops_its_ranks_until_a_new_lease_comes(tmp_path: Path) -> None:
    with slept_through_its_lease(tmp_path, awake=600.0) as (process, orphan):
        until(lambda: state_of(orphan) == "T", "a stopped rank")
        os.kill(orphan, signal.SIGCONT)  # as a scheduler does that wakes one process after the other
        until(lambda: state_of(orphan) == "T", "a rank that is stopped again")
        process.send_signal(signal.SIGUSR2)
        until(lambda: state_of(orphan) == "S", "a rank that goes on")
        assert process.poll() is None
        os.kill(child(process), signal.SIGKILL)
        process.communicate(timeout=LIMIT)
        assert not lives(orphan)


STANDS_STILL_AS_IT_READS = LEAPS + (
    "read = os.read\n"
    "def slow(fd, size):\n"
    " data = read(fd, size)\n"
    " if data.startswith(b'until'): slept[0] = 600.0\n"
    " return data\n"
    "os.read = slow\n"
)


def test_a_shim_that_stood_still_as_it_read_its_lease_stops_its_ranks_too() -> None:
    agent = "hidden()\nos.write(lease, live(300.0))\ntime.sleep(600)"
    with shim(agent, awake=600.0, before=STANDS_STILL_AS_IT_READS) as process:
        orphan = int(line(process))
        until(lambda: state_of(orphan) == "T", "a stopped rank")
        os.kill(child(process), signal.SIGKILL)
        process.communicate(timeout=LIMIT)
        assert not lives(orphan)


def test_a_node_that_stood_still_kills_its_ranks_where_no_new_lease_comes(tmp_path: Path) -> None:
    with slept_through_its_lease(tmp_path, awake=0.5) as (process, orphan):
        _, message = process.communicate(timeout=LIMIT)
        assert process.returncode == 1 and not lives(orphan)
        assert message.startswith("n1: this node stood still for ") and message.count("\n") == 2
