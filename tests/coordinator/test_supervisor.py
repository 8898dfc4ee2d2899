"""The supervisor: what a killed coordinator, a signal and an end mean for the batch step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coordinator.runs import until

PRELUDE = """
import os, signal, sys, time
from clusterrun.coordinator.io import supervisor
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.model import contract
contract.LEASE_SECONDS = contract.KILL_SECONDS = 0.5
supervisor.SILENT_SECONDS = 3.0

def said(*words):
    print(*words, flush=True)

def until_told(kept, out):
    loop, got = EventLoop(), []
    loop.catch(contract.OUTSIDE_SIGNALS, got.append)
    while not got:
        loop.wait(None)
    return got

"""


class Kept:
    """A supervisor at work; ``body`` is what its coordinator does: the body of ``coordinate(kept)``."""

    def __init__(self, folder: Path, body: str) -> None:
        lines = "\n".join("    " + line for line in body.strip().splitlines())
        code = f"{PRELUDE}\ndef coordinate(kept):\n{lines}\n\n"
        code += "sys.exit(supervisor.under_supervisor(coordinate))\n"
        (folder / "kept.py").write_text(code)
        self.out = folder / "out"
        with open(self.out, "wb") as out:
            command = [sys.executable, str(folder / "kept.py")]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    @property
    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def says(self, arguments: str) -> str:
        """Wait for the first line that begins with these words and return it."""
        result = until(lambda: [x for x in self.lines if x.startswith(arguments)], f"{arguments!r}", 60.0)
        return str(result[0])

    def strike_coordinator(self, number: int) -> None:
        """Send a signal to the coordinator once it is ready."""
        self.says("ready")
        os.kill(int(self.says("pid").split()[1]), number)

    def ends(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[object]:
    created: list[Kept] = []

    def make(body: str) -> Kept:
        created.append(Kept(tmp_path, body))
        return created[-1]

    yield make
    for retained in created:
        try:
            os.killpg(retained.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        retained.process.wait()


def test_the_batch_step_exits_with_the_coordinators_code(keep) -> None:
    assert keep("return 7").ends() == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_reaches_the_coordinator_once(keep, number) -> None:
    retained = keep("said('here'); said('got', *until_told(kept, said)); time.sleep(0.3); return 3")
    retained.says("here")
    os.kill(retained.process.pid, number)
    assert retained.ends() == 3
    assert [line for line in retained.lines if line.startswith("got")] == [f"got {int(number)}"]


def test_a_signal_that_comes_before_the_coordinator_listens_waits_for_it(keep) -> None:
    retained = keep("said('here'); time.sleep(0.5); said('got', *until_told(kept, said)); return 0")
    retained.says("here")
    os.kill(retained.process.pid, signal.SIGTERM)
    assert retained.says("got") == f"got {int(signal.SIGTERM)}"


AGAIN = """
said('pid', os.getpid(), kept.dead_since)
if kept.dead_since:
    return 5
kept.allow_restart()
said('ready')
time.sleep(60)
"""


def test_the_next_coordinator_knows_when_the_killed_one_started(keep) -> None:
    retained = keep(AGAIN)
    retained.strike_coordinator(signal.SIGKILL)
    assert retained.ends() == 5
    second = [line for line in retained.lines if line.startswith("pid")][1]
    assert float(second.split()[2]) <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert "clusterrun: the coordinator was killed by SIGKILL, another one is begun" in retained.lines


LAUNCHED = """
import subprocess
if kept.dead_since:
    return 5
kept.allow_restart()
subprocess.Popen(["/bin/sh", "-c", "trap 'echo told; exit' TERM; echo ready; while :; do sleep 0.05; done"])
time.sleep(60)
"""


def test_processes_of_a_killed_coordinator_are_asked_to_end(keep) -> None:
    retained = keep(LAUNCHED.replace("import subprocess", "said('pid', os.getpid()); import subprocess"))
    retained.strike_coordinator(signal.SIGKILL)
    assert retained.ends() == 5
    assert "told" in retained.lines


def test_a_coordinator_that_crashed_is_shown_and_replaced(keep) -> None:
    retained = keep(AGAIN.replace("time.sleep(60)", "1 / 0"))
    assert retained.ends() == 5
    assert "ZeroDivisionError: division by zero" in retained.lines


def test_a_coordinator_without_restarts_ends_the_batch_step(keep) -> None:
    retained = keep(AGAIN.replace("kept.allow_restart()", ""))
    retained.strike_coordinator(signal.SIGKILL)
    assert retained.ends() == -signal.SIGKILL


def test_no_more_than_three_are_begun_in_ten_minutes(keep) -> None:
    retained = keep("said('pid'); kept.allow_restart(); os.kill(os.getpid(), 9)")
    assert retained.ends() == -signal.SIGKILL
    assert retained.lines.count("pid") == 4


def test_a_coordinator_that_is_stopped_for_good_is_killed_and_followed_by_another(keep) -> None:
    retained = keep(AGAIN.replace("said('ready')", "kept.lives(); said('ready')"))
    retained.strike_coordinator(signal.SIGSTOP)
    assert retained.ends() == 5
    assert "clusterrun: the coordinator gave no sign of life for 3 s: it is killed" in retained.lines


def test_a_living_coordinator_is_not_touched(keep) -> None:
    retained = keep("""
kept.lives()
for _ in range(30):
    time.sleep(0.1)
    kept.lives()
return 4
""")
    assert retained.ends() == 4


def test_processes_of_a_killed_coordinator_end_before_the_next_one_starts(keep) -> None:
    retained = keep("""
if kept.dead_since:
    said('second', len(supervisor._children_of(os.getppid())))
    return 0
kept.allow_restart()
pid = os.fork()
if pid == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, contract.OUTSIDE_SIGNALS)
    time.sleep(60)
said('left', pid)
os.kill(os.getpid(), 9)
""")
    assert retained.ends() == 0
    pid = int(retained.says("left").split()[1])
    assert not os.path.exists(f"/proc/{pid}")
    assert retained.says("second") == "second 1"


def test_a_signal_between_two_coordinators_starts_the_next_one_and_reaches_it(keep) -> None:
    retained = keep(
        """
if kept.dead_since:
    said('got', *until_told(kept, said))
    return 0
contract.LEASE_SECONDS
kept.allow_restart()
if os.fork() == 0:
    time.sleep(60)
said('left')
os.kill(os.getpid(), 9)
""".replace("contract.LEASE_SECONDS\n", "")
    )
    retained.says("clusterrun: the coordinator was killed")
    os.kill(retained.process.pid, signal.SIGTERM)
    assert retained.ends() == 0
    assert retained.says("got") == f"got {int(signal.SIGTERM)}"


def test_a_coordinator_learns_that_its_supervisor_was_killed(keep, tmp_path) -> None:
    retained = keep("""
import select
said('ready')
select.select([kept.supervisor_fd], [], [], 60)
said('alone')
return 0
""")
    retained.says("ready")
    os.kill(retained.process.pid, signal.SIGKILL)
    assert retained.says("alone") == "alone"
