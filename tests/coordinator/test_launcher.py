"""The laws of launching agents twice: arguments, environment, and who is ended when."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from clusterrun.coordinator.io import launcher
from clusterrun.coordinator.io.launcher import Launch, Launcher, environments, relaunch
from clusterrun.model.frozen import replace
from clusterrun.protocol.bootstrap import Bootstrap
from clusterrun.runtime.event_loop import EventLoop, steady
from clusterrun.runtime.processes import ended_children
from clusterrun.slurm_text.controller_away import is_away
from clusterrun.slurm_text.srun_messages import unreached
from tests.coordinator.runs import until
from tests.coordinator.tapes import ORDERS

BOOTSTRAP = Bootstrap("00" * 32, "r", 0, ("127.0.0.1",), 29000, 4)
ARGV = ("srun", "--nodes=4", "--ntasks=4", "--no-kill", "python", "--nodes", "agent.pyz")


def launch(argv: tuple[str, ...], **environment: str) -> Launch:
    everything = {"PATH": os.defpath, "SLURM_JOB_NODELIST": "n[1-4]", **environment}
    return Launch(replace(ORDERS, launch=argv), (), everything, BOOTSTRAP, 1024)


def passing(loop: EventLoop, launcher: Launcher, ends: Sequence[object]) -> Callable[[], bool]:
    """Return a function that lets a little time pass and returns whether an end was reported."""

    def passes() -> bool:
        for child in ended_children():
            launcher.reaped(child)
        loop.wait(steady() + 0.02)
        return bool(ends)

    return passes


def test_a_second_launch_uses_the_remaining_nodes_and_sends_the_node_numbers() -> None:
    argv, environment = relaunch(launch(ARGV, SLURM_MEM_PER_NODE="64000", SLURM_MEM_PER_CPU="1"), ("n2",))
    assert argv == (
        *("srun", "--overlap", "--immediate=100", "--nodelist=n[1,3-4]", "--nodes=3", "--ntasks=3"),
        "--no-kill",
        *("python", "--nodes", "agent.pyz"),
    )
    assert environment == {"PATH": os.defpath, "SLURM_JOB_NODELIST": "n[1-4]", "CLUSTERRUN_NODES": "n[1-4]"}
    assert relaunch(launch(ARGV), ("n2",), beside=True)[0][:3] == ("srun", "--overlap", "--immediate=2")
    chosen = ("srun", "--nodes=4", "--nodelist=n[1-4]", "agent.pyz")
    assert relaunch(launch(chosen), ("n2",))[0] == (
        *("srun", "--overlap", "--immediate=100", "--nodelist=n[1,3-4]", "--nodes=3", "agent.pyz"),
    )


def test_the_directory_of_submission_survives_an_srun_that_replaces_it() -> None:
    (environment,) = environments(launch(ARGV).orders, {"SLURM_SUBMIT_DIR": "/home/me"})
    assert environment == {"SLURM_SUBMIT_DIR": "/home/me", "CLUSTERRUN_SUBMIT_DIR": "/home/me"}


def test_the_end_of_the_first_launch_is_not_the_end_of_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_KILL_AFTER", 0.3)
    program = tmp_path / "srun"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(stat.S_IRWXU)
    loop = EventLoop()
    ends: list[int] = []
    entry = Launcher(loop, launch((str(program),)), lambda ended: ends.append(ended.code))
    passes = passing(loop, entry, ends)

    entry.start()
    entry.end()
    until(passes, "the end of the first launch")
    assert ends == [128 + signal.SIGTERM]
    entry.start(("n2",))
    later = steady() + 1.0
    until(lambda: passes() and steady() > later, "the time at which the first one was to be killed")
    assert entry.alive and ends == [128 + signal.SIGTERM]
    entry.kill()
    until(lambda: passes() and len(ends) == 2, "the end of the second launch")
    assert ends[1] == 128 + signal.SIGKILL


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_launch_beside_another_is_over_with_the_newest_and_all_are_when_none_lives(
    tmp_path: Path, newest_first: bool
) -> None:
    program, limits = tmp_path / "srun", tmp_path / "limits"
    program.write_text(f"#!/bin/sh\necho limit: $2 >>'{limits}'\nexec sleep 100\n")
    program.chmod(stat.S_IRWXU)
    loop = EventLoop()
    ends: list[tuple[bool, bool]] = []
    entry = Launcher(loop, launch((str(program),)), lambda ended: ends.append((ended.whole, ended.others)))
    passes = passing(loop, entry, ends)
    started = []
    for without in ((), ("n2",)):
        before = set(entry._living)
        entry.start(without)
        started.append((set(entry._living) - before).pop())
        until(lambda: limits.exists() and limits.read_text().count("\n") == len(started), "its start")
    assert limits.read_text() == "limit:\nlimit: --immediate=2\n"
    for pid in reversed(started) if newest_first else started:
        assert entry.alive
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: (passes() or True) and pid not in entry._living | entry._older, "its end")
    assert ends == ([(True, True), (True, False)] if newest_first else [(True, False)])
    assert not entry.alive


@pytest.mark.parametrize(
    ("line", "early"),
    [
        ("srun: error: Node failure on n2", True),
        ("srun: error: task 2 launch failed: Slurmd could not connect IO", True),
        (
            "srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure",
            False,
        ),
    ],
)
def test_a_launcher_that_continues_without_a_node_names_it_and_one_that_gives_up_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, early: bool
) -> None:
    monkeypatch.setattr(launcher, "_OUTPUT_SECONDS", 0.05)
    program = tmp_path / "srun"
    program.write_text(f"#!/bin/sh\necho '{line}' >&2\necho over >&2\nexec sleep {100 if early else 1}\n")
    program.chmod(stat.S_IRWXU)
    loop = EventLoop()
    ends: list[tuple[int, str, bool]] = []
    entry = Launcher(
        loop, launch((str(program),)), lambda ended: ends.append((ended.code, ended.output[0], ended.whole))
    )
    passes = passing(loop, entry, ends)

    entry.start()
    until(passes, "a word of the launcher's")
    assert ends == [(1, line, False) if early else (0, line, True)]
    entry.kill()
    until(lambda: passes() and not entry.alive, "its end")


def test_a_killed_launcher_differs_from_a_launcher_that_reports_killed_tasks(tmp_path: Path) -> None:
    program = tmp_path / "srun"
    harmless = "srun: cluster configuration lacks support for cpu binding"
    program.write_text(f"#!/bin/sh\necho '{harmless}' >&2\nkill -9 $$\n")
    program.chmod(stat.S_IRWXU)
    loop = EventLoop()
    ends: list[tuple[int, tuple[str, ...]]] = []
    entry = Launcher(loop, launch((str(program),)), lambda ended: ends.append((ended.code, ended.output)))
    passes = passing(loop, entry, ends)

    entry.start()
    until(passes, "its end")
    assert ends == [(137, (f"{program} was killed by signal 9 (SIGKILL)",))]


UNREACHED = (
    "srun: error: Task launch for StepId=1.0 failed on node n2: Socket timed out on send/recv operation"
)
NO_NAME = "srun: error: Task launch for StepId=1.0 failed on node n3: Can't find an address, check slurm.conf"
AGAIN = "srun: error: get_addr_info: getaddrinfo() failed: Temporary failure, attempt number "


@pytest.mark.parametrize("before", [0, 4, 5, 9, 14, 15, 40])
@pytest.mark.parametrize("after", [0, 5, 9, 14, 15, 40])
@pytest.mark.parametrize("line", [UNREACHED, NO_NAME])
def test_the_line_that_names_a_node_not_reached_is_never_dropped_among_others(
    before: int, after: int, line: str
) -> None:
    messages: list[tuple[str, ...]] = []
    entry = Launcher(EventLoop(), launch(ARGV), lambda ended: messages.append(ended.output))
    arguments = [f"line {number}" for number in range(before)] + [line]
    arguments += [f"later {number}" for number in range(after)]
    for number, word in enumerate(arguments):
        entry._show(word)
        entry._show(f"{AGAIN}{number}")
    retained = tuple(entry._output)
    assert unreached(retained) == unreached([line])
    assert retained[:5] == tuple(arguments[:5])
    assert set(arguments[-15:]) <= set(retained)
    assert len(retained) <= 21


@pytest.mark.parametrize(
    ("message", "away"),
    [
        (("srun: error: Unable to create step: Unable to contact slurm controller (connect failure)",), True),
        (("srun: error: Unable to confirm allocation: Socket timed out on send/recv operation",), True),
        (
            (UNREACHED, "srun: error: Application launch failed: Socket timed out on send/recv operation"),
            False,
        ),
        ((NO_NAME,), False),
    ],
)
def test_a_node_that_does_not_answer_the_launcher_is_not_a_controller_that_is_away(
    message: tuple[str, ...], away: bool
) -> None:
    assert is_away(message) is away
