"""A check that waited for a processor until its limit blames no node; one that hangs does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight import registry
from clusterrun.preflight.checks import infiniband
from clusterrun.preflight.node import forked_call
from clusterrun.preflight.node.task_runner import RunningChecks
from clusterrun.preflight.probes import run_program
from clusterrun.preflight.tasks import LocalAnswer, LocalTask, RunNeeds
from clusterrun.runtime import overload

NEEDS = RunNeeds("/", "", "/", 0, 1)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine of the test is idle."""
    monkeypatch.setattr(overload, "is_crowded", lambda: False)


@pytest.fixture
def crowded(idle: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload, "is_crowded", lambda: True)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalAnswer]:
    """Yield the answer of a check that exceeds its limit."""
    monkeypatch.setattr(infiniband, "LIMIT", 0.2)
    monkeypatch.setattr(infiniband, "probe", lambda request: time.sleep(600))
    running = RunningChecks(LocalTask(NEEDS, (infiniband.NAME,)), str(tmp_path), "/", lambda *_: None)
    end = time.monotonic() + 60.0
    while not running.tick():
        assert time.monotonic() < end
        time.sleep(0.01)
    yield running.answer()
    running.end()


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "seconds_without_processor", lambda pid: 8.0)


def grades(answer: LocalAnswer) -> list[tuple[Grade, str]]:
    result = registry.findings(NEEDS, {"n1": answer}, {}, {})
    return [(finding.verdict, finding.message) for finding in result["n1"]]


def test_a_check_that_hangs_is_a_verdict(late: LocalAnswer) -> None:
    assert [grade for grade, _ in grades(late)] == [Grade.FAIL]


def test_a_check_that_waited_for_a_processor_is_none(starved: None, late: LocalAnswer) -> None:
    ((grade, message),) = grades(late)
    assert grade is Grade.UNDETERMINED and "this node is overloaded" in message


def test_a_check_that_waited_for_a_lock_on_a_crowded_machine_is_none(
    crowded: None, late: LocalAnswer
) -> None:
    """Seen under 800 processes: it slept on a lock of the kernel, whose holder had no processor."""
    assert [grade for grade, _ in grades(late)] == [Grade.UNDETERMINED]


def test_an_unread_answer_at_the_limit_was_given_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(infiniband, "LIMIT", 0.0)
    monkeypatch.setattr(infiniband, "probe", lambda request: {})
    running = RunningChecks(LocalTask(NEEDS, (infiniband.NAME,)), str(tmp_path), "/", lambda *_: None)
    (child,) = running._children.values()
    os.waitid(os.P_PID, child.call.pid, os.WEXITED | os.WNOWAIT)
    assert running.tick()
    (reading,) = running.answer().readings
    assert (reading.value, reading.late) == ("{}", False)


def test_a_program_that_waits_for_a_processor_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([0.1, 0.2, 0.2])
    monkeypatch.setattr(run_program, "seconds_without_processor", lambda pid: next(waits))
    assert run_program.answer("sleep", "600", seconds=0.2).code == -9
    assert next(waits, None) is None
    monkeypatch.setattr(run_program, "seconds_without_processor", lambda pid: time.monotonic())
    assert run_program.answer("sh", "-c", "sleep 0.5; echo done", seconds=0.2).out == "done\n"


def test_the_kernel_counts_how_long_a_process_waits() -> None:
    assert proc.seconds_without_processor(1) >= 0.0
    assert proc.seconds_without_processor(2**30) == 0.0
    assert forked_call.call(list, 60.0).seconds_without_processor() >= 0.0
