"""The laws of sidecar processes: bounded both ways, never waited for, ended whole; real processes."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun import proc
from clusterrun.agent import sidecar_processes
from clusterrun.agent.rank_environment import AgentPlace
from clusterrun.agent.sidecar_processes import SidecarProcesses
from clusterrun.model import contract
from clusterrun.model.paths import RunPaths
from clusterrun.model.world import Lineage
from clusterrun.protocol.messages import AskSidecar, SidecarEnded, SidecarSaid
from clusterrun.runtime import kill_tree
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import become_subreaper, ended_children
from tests.coordinator.tapes import ORDERS

PROGRAM = """
import json, os, sys, time
def say(number, body):
    sys.stdout.write(json.dumps({"number": number, "body": body}) + "\\n")
    sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line)
    word, _, rest = asked["body"].partition(" ")
    if word == "echo": say(asked["number"], rest)
    if word == "where": say(asked["number"], json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))
    if word == "big": say(asked["number"], "x" * int(rest))
    if word == "wide": say(asked["number"], chr(0x20AC) * int(rest))
    if word == "raw": os.write(1, rest.encode() + b"\\n")
    if word == "endless": os.write(1, b"x" * 1100000)
    if word == "complain": sys.stderr.write(rest + "\\n"); sys.stderr.flush(); say(asked["number"], "done")
    if word == "exit": say(asked["number"], "last words"); sys.exit(int(rest))
    if word == "sleep": time.sleep(300)
    if word == "child":
        if os.fork() == 0:
            os.setsid(); time.sleep(300)
        say(asked["number"], "")
"""


class Stage:
    """Companions in a loop of their own; ``events`` is what became of them."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(str(folder))
        self.loop = EventLoop()
        self.events: list[Any] = []
        self.open = True
        Path(self.paths.agent).write_text(PROGRAM)
        os.makedirs(self.paths.attempt(4).folder)
        environment = {"PATH": os.defpath, "SLURM_PROCID": "3", "MINE": "1"}
        self.sidecars = SidecarProcesses(ORDERS, self.paths, AgentPlace(7, "n7", environment), self.loop)
        self.sidecars.happened = self.events.append
        self.sidecars.reap = self.reap
        self.sidecars.clear = lambda: self.open
        self.sidecars.ranks = lambda: {0: 11, 1: 12}

    def reap(self) -> None:
        for child in ended_children():
            self.sidecars.reaped(child)

    def ask(self, number: int, body: str, name: str = "examiner") -> None:
        self.sidecars.ask(AskSidecar(4, name, number, body))

    def until(self, condition: Callable[[], Any], seconds: float = 90.0) -> Any:
        end = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < end, self.events
            self.loop.wait(steady() + 0.02)
            self.reap()
        return result

    def answers(self, count: int) -> list[Any]:
        self.until(lambda: len(self.events) >= count)
        return self.events[:count]

    def mine(self) -> list[int]:
        """Return every process of this folder's sidecars."""
        marker = Lineage(ORDERS.run_id, "", self.paths.run_dir, 4, 0).run_dir
        alive = [p for p in proc.processes() if p.state not in proc.GONE_STATES and p.pid != os.getpid()]
        return [p.pid for p in alive if proc.environment(p.pid).get("CLUSTERRUN_RUN_DIR") == marker]


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Adopt orphans, as an agent does. A sidecar may exit at the end of its input, before its children."""
    assert become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@pytest.fixture
def stage(subreaper: None, tmp_path: Path) -> Iterator[Stage]:
    created = Stage(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    yield created
    created.sidecars.end_all()
    created.until(lambda: not created.mine())
    created.until(lambda: not uncollected())
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def uncollected() -> list[int]:
    """Collect our children that have ended and return their ids. The next test counts its children."""
    return [p.pid for p in proc.processes() if p.parent == os.getpid() and p.state in proc.GONE_STATES]


def said(number: int, body: str, name: str = "examiner") -> SidecarSaid:
    return SidecarSaid(4, name, number, body)


def test_a_question_starts_the_sidecar_and_its_answers_come_in_order(stage: Stage) -> None:
    for number in range(1, 4):
        stage.ask(number, f'echo {number} " é')
    assert stage.answers(3) == [said(number, f'{number} " é') for number in range(1, 4)]
    assert len(stage.mine()) == 1


def test_a_sidecar_gets_the_ranks_environment_its_marks_and_its_orders(stage: Stage) -> None:
    import json

    stage.ask(1, "where")
    argv, environment, cwd = json.loads(stage.answers(1)[0].body)
    assert (argv, cwd) == (["examine", stage.paths.run_dir, "n7"], "/")
    assert {k: v for k, v in environment.items() if k != "LC_CTYPE"} == {
        "PATH": os.defpath,
        "MINE": "1",
        "CLUSTERRUN_RUN_ID": "r",
        "CLUSTERRUN_RUN_NAME": "r",
        "CLUSTERRUN_RUN_DIR": stage.paths.run_dir,
        "CLUSTERRUN_ATTEMPT": "4",
        "CLUSTERRUN_STEP": "r.4",
        "CLUSTERRUN_NODE_NAME": "n7",
        "CLUSTERRUN_COMPANION": "examiner",
    }


def test_an_observer_receives_the_ranks_first(stage: Stage) -> None:
    stage.sidecars.start(4, "observer")
    stage.ask(1, "where", "observer")
    (answer,) = stage.answers(1)
    assert '["observe", ' in answer.body and '"7", "n7"]' in answer.body


def test_a_sidecars_stderr_goes_to_its_own_log(stage: Stage) -> None:
    stage.ask(1, "complain the disk is odd")
    stage.answers(1)
    assert Path(stage.paths.attempt(4).sidecar_log(7, "examiner")).read_text() == "the disk is odd\n"


def test_a_sidecar_runs_without_a_log_if_none_can_be_written(stage: Stage) -> None:
    os.rmdir(stage.paths.attempt(4).folder)
    stage.ask(1, "complain nobody hears this")
    assert stage.answers(1) == [said(1, "done")]


@pytest.mark.parametrize("requested, why", [
    ("raw hello", "sent an invalid answer: 'hello'"),
    ("raw {}", "sent an invalid answer: '{}'"),
    ("raw [1]", "sent an invalid answer: '[1]'"),
    ('raw {"number": "1", "body": ""}', "sent an invalid answer"),
    ('raw {"number": 1, "body": {}}', "sent an invalid answer"),
    ('raw {"number": 1e999, "body": ""}', "sent an invalid answer"),
    ("endless", "sent a line of more than 1,000,000 bytes"),
    ("wide 200000", "sent a line of more than 1,000,000 bytes"),
    ("exit 3", "exited with code 3"),
    ("exit 0", "exited with code 0"),
])  # fmt: skip
def test_whatever_else_it_does_is_its_end_and_is_named(stage: Stage, requested: str, why: str) -> None:
    stage.ask(1, requested)
    ended = stage.until(lambda: next((e for e in stage.events if isinstance(e, SidecarEnded)), None))
    assert (ended.epoch, ended.sidecar) == (4, "examiner") and why in ended.why
    assert requested.startswith("exit") == (said(1, "last words") in stage.events)
    stage.until(lambda: not stage.mine())
    stage.ask(2, "echo again")
    assert stage.until(lambda: stage.events[-1:] == [said(2, "again")])


def test_a_killed_sidecar_is_reported_with_the_signal(stage: Stage) -> None:
    stage.ask(1, "echo x")
    stage.answers(1)
    os.kill(stage.mine()[0], 9)
    assert "was killed by signal 9 (SIGKILL)" in stage.answers(2)[1].why


def test_a_sidecar_that_does_not_read_never_blocks_and_is_ended_at_the_limit(stage: Stage) -> None:
    stage.ask(1, "sleep")
    for number in range(2, 60):
        stage.ask(number, "x" * 100_000)
    assert stage.events == [SidecarEnded(4, "examiner", "the examiner does not read its requests")]


def test_input_that_is_not_read_yet_waits_in_the_pipe(stage: Stage) -> None:
    stage.open = False
    for number in range(1, 4):
        stage.ask(number, "big 90000")
    for _ in range(20):
        stage.loop.wait(steady() + 0.01)
    assert stage.events == []
    stage.open = True
    assert [len(event.body) for event in stage.answers(3)] == [90000] * 3


def test_ending_a_sidecar_silently_ends_its_children(stage: Stage) -> None:
    stage.ask(1, "child")
    stage.answers(1)
    stage.until(lambda: len(stage.mine()) == 2)
    stage.sidecars.end("examiner")
    stage.until(lambda: not stage.mine())
    assert stage.events == [said(1, "")]


class FakeTime:
    """Time that passes only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("seconds", "waited"), [(5.0, True), (600.0, False)])
def test_an_end_waits_while_the_driver_of_a_gpu_ends_a_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seconds: float, waited: bool
) -> None:
    stage.ask(1, "echo x")
    stage.answers(1)
    fake_time = FakeTime()
    held = proc.descendants(os.getpid())  # an examiner may end by itself when its input is closed
    assert held
    monkeypatch.setattr(sidecar_processes, "_kin", lambda pid, name: held if fake_time.now < seconds else [])
    monkeypatch.setattr(kill_tree, "time", fake_time)
    stage.sidecars.end("examiner")
    assert (fake_time.now >= seconds) == waited
    assert fake_time.now < contract.LOST_SECONDS - contract.HEARTBEAT_SECONDS


def test_the_exit_of_a_sidecar_does_not_touch_the_other(stage: Stage) -> None:
    stage.sidecars.start(4, "observer")
    stage.ask(1, "echo x")
    stage.answers(1)
    stage.sidecars.end("examiner")
    stage.ask(2, "echo y", "observer")
    assert stage.answers(2)[1] == said(2, "y", "observer")


def test_a_program_that_cannot_be_started_has_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    stage.ask(1, "echo x")
    (ended,) = stage.answers(1)
    assert ended.sidecar == "examiner" and "'/no/such/python' cannot be executed" in ended.why
