"""Requests of ranks, the agreement of all ranks on them, and reports of progress; without torch."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from clusterrun.model import contract
from clusterrun.model.paths import RunPaths
from clusterrun.model.world import Lineage, run_environment
from clusterrun.training import post, script, surroundings
from clusterrun.training.agreement import Maximum
from clusterrun.training.post import MessageWriter
from clusterrun.training.script import BETWEEN, MOST_CALLS, AgreedQuestion, Script
from clusterrun.training.surroundings import Surroundings

LONG = 60.0


def until(condition) -> None:
    """Wait for what another thread does."""
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


@pytest.fixture
def place(tmp_path):
    """Make this process rank 0 of attempt 2 of a run."""
    result = Surroundings(str(tmp_path), 2, 0)
    os.makedirs(result.folder)
    return result


@pytest.fixture
def notice_as_it_was():
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


# --- where it stands ---


def test_the_names_are_those_that_the_launcher_gives(tmp_path) -> None:
    lineage = Lineage("r", "name", str(tmp_path), 12, 3)
    result = surroundings.surroundings({**run_environment(lineage), "RANK": "5"})
    run = RunPaths(str(tmp_path))
    assert (result.run_dir, result.attempt, result.rank) == (str(tmp_path), 12, 5)
    assert (result.folder, result.save_now) == (run.attempt(12).folder, run.save_now)
    assert (result.progress, result.notice) == (run.attempt(12).progress, run.attempt(12).notice)
    assert contract.NOTICE_SIGNAL == script.NOTICE_SIGNAL


def test_torchruns_count_of_restarts_is_an_attempt_too_and_nonsense_is_none() -> None:
    assert surroundings.surroundings({"TORCHELASTIC_RESTART_COUNT": "3"}) == Surroundings("", 3, 0)
    assert surroundings.surroundings({"RANK": "x", "CLUSTERRUN_ATTEMPT": "-1"}) == Surroundings("", 0, 0)


def test_the_newest_attempt_is_the_highest_folder_and_a_run_directory_that_is_away_proves_nothing(
    place,
) -> None:
    for name in ("000", "011", "notes"):
        os.makedirs(os.path.join(place.run_dir, "attempts", name))
    assert place.newest_attempt() == 11
    assert Surroundings("/nowhere", 4).newest_attempt() == 4
    assert Surroundings("", 4).newest_attempt() == 4


# --- when the ranks agree ---


class LaterMaximum(Maximum):
    """A maximum computed on a GPU. It is unknown when the round begins."""

    is_ready = False

    def wait(self) -> tuple[int, ...]:
        return self._numbers


class Ranks:
    """Several ranks that ask one question, each with a clock of its own; a round takes the maximum."""

    def __init__(self, size: int, on_gpus: bool = False) -> None:
        self.maximum = (lambda *numbers: LaterMaximum(numbers)) if on_gpus else (lambda *n: Maximum(n))
        self.known = [0] * size
        self.clocks = [0.0] * size
        self.said: list[tuple[int, ...]] = []
        self.questions = [
            AgreedQuestion(
                lambda rank=rank: self.known[rank],
                self._agree,
                lambda rank=rank: rank == 0,
                lambda rank=rank: self.clocks[rank],
            )
            for rank in range(size)
        ]

    def _agree(self, *numbers: int) -> Maximum:
        """Let rank 0 ask first. It alone proposes, so the others' part is known before they answer."""
        self.said.append(numbers)
        return self.maximum(max(self.known), *self.said[0][1:])

    def call(self, seconds: float, every: int = 0) -> tuple[bool, list[int]]:
        """Let all ranks ask once. Return whether they made a round, and each answer."""
        self.clocks = [clock + seconds * (1 + rank) for rank, clock in enumerate(self.clocks)]
        self.said = []
        answers = [question.answer(every) for question in self.questions]
        assert len(self.said) in (0, len(self.questions))
        assert all(numbers[1:] == (1, 0) for numbers in self.said[1:])
        return bool(self.said), answers


def test_every_rank_agrees_at_the_same_calls_with_any_clock() -> None:
    ranks = Ranks(3)
    created = [ranks.call(0.01)[0] for _ in range(100)]
    # The first two know of no pace; then a quarter of a second is more than the most calls between two.
    assert [number for number, value in enumerate(created) if value][:5] == [0, 1, 2 + 15, 2 + 31, 2 + 47]


def test_a_slow_script_meets_at_every_call_and_a_fast_one_seldom() -> None:
    slow, fast = Ranks(2), Ranks(2)
    assert sum(slow.call(2 * BETWEEN)[0] for _ in range(64)) == 64
    assert sum(fast.call(BETWEEN / 1000)[0] for _ in range(64)) == 2 + 62 // MOST_CALLS


def test_all_ranks_return_the_notice_of_one_rank_at_the_same_call() -> None:
    ranks = Ranks(4)
    answers = []
    for call in range(40):
        ranks.known[2] = 2 if call >= 7 else 0
        answers.append(ranks.call(0.01)[1])
    assert all(len(set(answer)) == 1 for answer in answers)
    assert [2, 2, 2, 2] in answers


def test_ranks_on_gpus_get_the_answer_at_the_next_call_and_each_request_once() -> None:
    ranks = Ranks(2, on_gpus=True)
    answers = []
    for call in range(12):
        ranks.known[1] = int(call == 6)
        answers.append(ranks.call(0.2)[1])
    assert answers == [[0, 0]] * 7 + [[1, 1]] + [[0, 0]] * 4


def test_ranks_on_gpus_that_ask_seldom_get_the_answer_at_once() -> None:
    ranks = Ranks(2, on_gpus=True)
    answers = []
    for call in range(6):
        ranks.known[1] = int(call == 4)
        answers.append(ranks.call(30.0)[1])
    assert answers[4:] == [[1, 1], [0, 0]]


def test_rounds_follow_a_fixed_number_of_calls() -> None:
    ranks = Ranks(2)
    created = [ranks.call(1.0, every=5)[0] for _ in range(20)]
    assert [number for number, value in enumerate(created) if value] == [4, 9, 14, 19]


# --- what a script hears ---


def test_nothing_is_asked_or_written_outside_a_run(tmp_path, monkeypatch, notice_as_it_was) -> None:
    monkeypatch.chdir(tmp_path)
    alone = Script(Surroundings())
    alone.progress(3, None)
    assert [alone.should_stop(1), alone.save_now(1)] == [False, False]
    assert os.listdir(tmp_path) == []


def test_a_signal_requests_a_stop_for_good_and_a_checkpoint_once(notice_as_it_was) -> None:
    message = Script(Surroundings())
    assert not message.should_stop(1)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert [message.should_stop(1), message.save_now(1)] == [True, True]
    os.kill(os.getpid(), signal.SIGUSR2)
    assert [message.should_stop(1), message.save_now(1)] == [True, False]


def test_an_earlier_signal_handler_still_runs(notice_as_it_was) -> None:
    got = []
    signal.signal(signal.SIGUSR2, lambda number, _: got.append(number))
    message = Script(Surroundings())
    message.should_stop(1)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert got == [signal.SIGUSR2]
    assert message.should_stop(1)


def test_a_script_that_only_reports_progress_catches_no_signal(place, notice_as_it_was) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    Script(place).progress(1, None)
    assert signal.getsignal(signal.SIGUSR2) == before


def test_only_the_notice_file_is_read_in_another_thread(place) -> None:
    before, heard = signal.getsignal(signal.SIGUSR2), []
    with open(place.notice, "w", encoding="ascii") as file:
        file.write("{}")
    thread = threading.Thread(target=lambda: heard.append(Script(place).should_stop(1)))
    thread.start()
    thread.join(LONG)
    assert heard == [True]
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_notice_before_the_first_call_is_returned_at_once_and_reported(place, notice_as_it_was) -> None:
    with open(place.notice, "w", encoding="ascii") as file:
        file.write("half of a docu")
    message = Script(place)
    message.progress(8, None)
    assert message.should_stop(0)
    until(lambda: read(place).get("stopping"))
    assert {name: read(place)[name] for name in ("format", "step", "checkpoint", "stopping")} == {
        "format": 1,
        "step": 8,
        "checkpoint": None,
        "stopping": True,
    }


def test_each_request_for_a_checkpoint_counts_once_and_its_file_is_removed(
    place, monkeypatch, notice_as_it_was
) -> None:
    monkeypatch.setattr(post, "EVERY", 0.001)
    requested = Script(place)
    for _ in range(2):
        assert not requested.save_now(1)
        open(place.save_now, "w", encoding="ascii").close()
        until(lambda: requested.save_now(1))
        assert not os.path.exists(place.save_now)
    assert not requested.should_stop(1)


# --- what it says ---


def read(place) -> dict:
    try:
        with open(place.progress, encoding="ascii") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def test_the_first_steps_are_reported_at_once_and_a_crash_loses_no_later_step(place) -> None:
    message = Script(place)
    for step in range(1, 31):
        message.progress(step, None)
        if step <= post.BURST - 1:
            until(lambda step=step: read(place).get("step") == step)
    message._at_exit()
    assert (read(place)["step"], read(place)["checkpoint"], read(place)["stopping"]) == (30, None, False)
    assert sorted(os.listdir(place.folder)) == ["progress.json"]
    assert os.stat(place.progress).st_mode & 0o777 == 0o600


def test_a_checkpoint_is_reported_at_once(place) -> None:
    message = Script(place)
    for step in range(1, 31):
        message.progress(step, None)
    message.progress(None, 30)
    until(lambda: read(place).get("checkpoint") == 30)
    assert read(place)["step"] == 30


def test_only_rank_0_reports_progress(tmp_path) -> None:
    place = Surroundings(str(tmp_path), 0, 1)
    os.makedirs(place.folder)
    message = Script(place)
    message.progress(1, 1)
    message._at_exit()
    assert os.listdir(place.folder) == []


def test_messages_are_limited_per_second() -> None:
    clock = [0.0]
    sender = MessageWriter(Surroundings(), True, lambda: clock[0])
    at_once = [sender._may_go() for _ in range(post.BURST + 5)]
    assert at_once == [True] * post.BURST + [False] * 5
    clock[0] += post.EVERY
    assert [sender._may_go(), sender._may_go()] == [True, False]
    clock[0] += 1000 * post.EVERY
    assert sum(sender._may_go() for _ in range(100)) == post.BURST


def test_a_run_directory_that_is_away_costs_nothing_and_gets_the_next_word(place, monkeypatch) -> None:
    monkeypatch.setattr(post, "EVERY", 0.001)
    message = Script(place)
    away = place.run_dir + ".away"
    os.rename(place.run_dir, away)
    message.progress(5, None)
    message.progress(6, 6)
    os.rename(away, place.run_dir)
    until(lambda: read(place).get("step") == 6)


def test_a_file_system_that_hangs_holds_nobody_up(place, monkeypatch) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(*_):
        hangs.set()
        released.wait(LONG)

    monkeypatch.setattr(os, "replace", hang)
    message = Script(place)
    message.progress(1, None)
    assert hangs.wait(LONG)
    waits = []
    monkeypatch.setattr(message._post._idle, "wait", waits.append)
    for step in range(2, 50):
        message.progress(step, step)
    released.set()
    assert waits == []


def test_a_full_disk_leaves_no_half_word_behind(place, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    sender = MessageWriter(place, True)
    sender._news = {sender.place.progress: {"step": 1}}
    monkeypatch.setattr(json, "dump", full)
    sender.write()
    assert os.listdir(place.folder) == []
    assert sender._news == {sender.place.progress: {"step": 1}}


def test_a_forked_child_has_its_own_state_and_reports_nothing(place, monkeypatch) -> None:
    monkeypatch.setattr(script, "_current", [])
    monkeypatch.setenv("CLUSTERRUN_RUN_DIR", place.run_dir)
    monkeypatch.setenv("CLUSTERRUN_ATTEMPT", "2")
    mine = script.current_script()
    assert script.current_script() is mine
    monkeypatch.setattr(os, "getpid", lambda: mine.pid + 1)
    mine.progress(9, 9)
    mine._at_exit()
    assert read(place) == {}
