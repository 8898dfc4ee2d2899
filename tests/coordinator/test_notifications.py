"""Each change of a run's state sends its notifications once."""

from __future__ import annotations

from clusterrun.coordinator.run_state import Notifications
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State
from clusterrun.runtime.machine_events import Now

FIRST = Attempt(0, "first start", ("n0",), 1.0)
BEGINS = RunState("r", 0, State.RUNNING, Phase.STARTING, "", "login", 42, 1.0, attempts=(FIRST,))
TRAINS = replace(BEGINS, phase=Phase.TRAINING)
FAILURE = Failure(0, "n0", 1, 2.0, "rank 0 exited with code 1")
FAILED = replace(FIRST, outcome="FAILED", failure=FAILURE)
RESTARTS = replace(TRAINS, phase=Phase.RESTARTING, attempts=(FAILED,))
TRAINS_AGAIN = replace(TRAINS, epoch=1, attempts=(FAILED, replace(FIRST, epoch=1)))
DONE = replace(TRAINS_AGAIN, state=State.COMPLETED, phase=Phase.ENDED)


def heard(*states: RunState) -> list[tuple[str, ...]]:
    notifications = Notifications()
    return [tuple(news.event for news in notifications.news(Now(1.0, 2.0), state)) for state in states]


def test_a_message_is_sent_when_ranks_run_fail_run_again_and_end() -> None:
    assert heard(BEGINS, TRAINS, TRAINS, RESTARTS, RESTARTS, TRAINS_AGAIN, DONE, DONE) == [
        (),
        ("started",),
        (),
        ("failed",),
        (),
        ("restarted",),
        ("ended",),
        (),
    ]


def test_a_run_that_fails_for_good_is_reported_as_failed_and_as_ended() -> None:
    ended = replace(BEGINS, state=State.FAILED, phase=Phase.ENDED, attempts=(FAILED,))
    assert heard(TRAINS, ended) == [("started",), ("failed", "ended")]


def test_a_run_that_waits_for_a_restart_has_not_ended() -> None:
    assert heard(replace(BEGINS, state=State.PENDING, phase=Phase.QUEUED)) == [()]


def restarts(*states: RunState) -> list[tuple[str, bool]]:
    notifications = Notifications()
    events = [event for state in states for event in notifications.news(Now(1.0, 2.0), state)]
    return [(event.reason, event.is_handover) for event in events if event.event == "restarted"]


def test_ranks_of_a_later_job_were_restarted_by_a_handover() -> None:
    earlier, later = replace(FIRST, outcome="TIMEOUT"), replace(FIRST, epoch=1, reason="time limit")
    state = replace(TRAINS, epoch=1, attempts=(earlier, later))
    assert heard(state) == [("restarted",)]
    assert restarts(state) == [("time limit", True)]


def test_a_restart_after_a_failure_is_no_handover() -> None:
    assert restarts(TRAINS, RESTARTS, TRAINS_AGAIN) == [("first start", False)]
    before_training = replace(BEGINS, attempts=(FAILED,))
    assert restarts(before_training, TRAINS_AGAIN) == [("first start", False)]
