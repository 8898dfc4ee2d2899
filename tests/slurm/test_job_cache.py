"""One answer of squeue serves all processes of a user, and an old one is never taken for a new one."""

from __future__ import annotations

import fcntl
import os
import stat
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest

from clusterrun.model.errors import SchedulerUnreachable
from clusterrun.slurm.job_cache import SharedJobs
from clusterrun.slurm.queries import JobRow
from clusterrun.system import RealClock
from tests.logs.test_follow import HandClock
from tests.operations.values import row


class Controller:
    """Answers with its rows, or not, and counts the questions."""

    def __init__(self) -> None:
        self.rows: tuple[JobRow, ...] = (row(),)
        self.down = False
        self.asked = 0

    def __call__(self) -> tuple[JobRow, ...]:
        self.asked += 1
        if self.down:
            raise SchedulerUnreachable("no answer", "try again")
        return self.rows


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def shared(tmp_path: Path, controller: Controller, clock: HandClock) -> SharedJobs:
    return of(tmp_path, controller, clock)


def of(tmp_path: Path, controller: Controller, clock: HandClock, **environment: str) -> SharedJobs:
    return SharedJobs(str(tmp_path / "home/cache"), environment, controller, clock, 2.0)


def test_an_answer_serves_until_the_floor_is_over(
    shared: SharedJobs, controller: Controller, clock: HandClock
) -> None:
    first = shared.jobs()
    clock.time += 1.9
    assert shared.jobs() == first
    clock.time += 0.2
    assert (shared.jobs().rows, controller.asked) == (first.rows, 2)


def test_a_file_of_the_cache_is_its_owners_alone(shared: SharedJobs, tmp_path: Path) -> None:
    shared.jobs()
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "home").rglob("*")}
    assert modes.pop("cache") == 0o700 and set(modes.values()) == {0o600}


def test_a_patient_reader_gets_a_cached_answer_and_an_impatient_one_a_new_answer(
    shared: SharedJobs, controller: Controller, clock: HandClock
) -> None:
    shared.jobs()
    clock.time += 20
    shared.jobs(oldest=30)
    assert controller.asked == 1
    shared.jobs(oldest=30, since=clock.time - 10)
    shared.jobs(since=clock.time)
    assert controller.asked == 2


def test_each_cluster_has_its_own_cache(tmp_path: Path, controller: Controller, clock: HandClock) -> None:
    for conf in ("/a", "/b", "/a"):
        of(tmp_path, controller, clock, SLURM_CONF=conf).jobs()
    assert controller.asked == 2


def test_a_controller_that_is_down_is_asked_less_often_and_its_last_answer_stays(
    shared: SharedJobs, controller: Controller, clock: HandClock
) -> None:
    answer = shared.jobs()
    controller.down, requested = True, []
    for _ in range(200):
        clock.time += 1
        before = controller.asked
        news = shared.jobs()
        assert (news.rows, news.at, bool(news.failure)) == (
            answer.rows,
            answer.at,
            clock.time > answer.at + 2,
        )
        requested += [clock.time] * (controller.asked - before)
    pauses = [later - value for value, later in pairwise(requested)]
    assert pauses[:4] == [4, 8, 16, 30] and set(pauses[4:]) == {30}
    controller.down = False
    clock.time += 30
    assert shared.jobs().failure == ""


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"at": 1e9}' * 2, b'{"at":"x"}', b"\xff", b"[" * 9999]
)
def test_a_damaged_file_is_no_answer(
    shared: SharedJobs, controller: Controller, tmp_path: Path, content: bytes
) -> None:
    shared.jobs()
    (path,) = (tmp_path / "home/cache").glob("*.json")
    path.write_bytes(content)
    assert (shared.jobs().rows, controller.asked) == (controller.rows, 2)


def test_a_file_that_others_may_write_or_that_is_a_link_is_not_believed(
    shared: SharedJobs, controller: Controller, tmp_path: Path
) -> None:
    shared.jobs()
    (path,) = (tmp_path / "home/cache").glob("*.json")
    path.chmod(0o622)
    shared.jobs()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    shared.jobs()
    assert controller.asked == 3


def test_an_answer_from_the_future_is_none(
    shared: SharedJobs, controller: Controller, clock: HandClock
) -> None:
    shared.jobs()
    clock.time -= 60
    shared.jobs()
    assert controller.asked == 2


def test_every_process_asks_by_itself_without_a_safe_folder(
    shared: SharedJobs, controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file")
    assert [shared.jobs().rows, shared.jobs().rows, controller.asked] == [controller.rows] * 2 + [2]


def test_a_process_that_waited_for_its_turn_uses_the_previous_answer(tmp_path: Path) -> None:
    controller = Controller()
    threads = [
        Thread(target=SharedJobs(str(tmp_path / "c"), {}, controller, RealClock(), 30.0).jobs)
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert controller.asked == 1


def test_a_process_that_keeps_its_turn_for_ever_keeps_nobody(
    shared: SharedJobs, controller: Controller, tmp_path: Path, clock: HandClock
) -> None:
    shared.jobs()
    (lock,) = (tmp_path / "home/cache").glob("*.lock")
    held = os.open(lock, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    clock.time += 5
    try:
        assert (shared.jobs().rows, controller.asked) == (controller.rows, 2)
    finally:
        os.close(held)
