"""Texts about a run: which events people hear of, what a text says, and that foreign text cannot forge it."""

from __future__ import annotations

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State
from clusterrun.notify import event_message
from clusterrun.notify.event_message import (
    CANNOT_START,
    ENDED,
    FAILED,
    HUNG,
    RESTARTED,
    STARTED,
    event_document,
    is_for_people,
    message_of,
)

FAILURE = Failure(
    3,
    "n1",
    1,
    2.0,
    "rank 3 on n1 exited with code 1",
    error="RuntimeError: shapes differ",
    place="/home/ada/train.py:12 main",
)
ATTEMPT = Attempt(0, "first start", ("n0", "n1"), 1.0, 2.0, "FAILED", FAILURE)
RUNNING = RunState(
    "r-1", 0, State.RUNNING, Phase.TRAINING, "restart 1 of 3", "n0", 42, 1.0, (ATTEMPT,), started_at=100.0
)
FAILED_RUN = replace(RUNNING, state=State.FAILED, reason=FAILURE.why, exit_code=1)


def text(event: str, state: RunState, name: str = "train", reason: str = "") -> list[str]:
    document = event_document(event, state, name, "47", "/runs/r-1", 3760.0, reason)
    return message_of(document).text.split("\n")


def test_a_restarted_failure_names_the_restart_and_the_first_failure() -> None:
    assert text(FAILED, RUNNING) == [
        "train failed; restart 1 of 3",
        "rank 3 on n1 exited with code 1",
        "RuntimeError: shapes differ",
        "at /home/ada/train.py:12 main",
        "run r-1, job 47, 2 nodes, 1 h 1 min after its start",
        "next: clusterrun status r-1",
    ]


def test_the_end_of_a_failed_run_has_the_reason_once_and_a_next_command() -> None:
    assert text(ENDED, FAILED_RUN) == [
        "train has ended: FAILED",
        "rank 3 on n1 exited with code 1",
        "RuntimeError: shapes differ",
        "at /home/ada/train.py:12 main",
        "run r-1, job 47, 2 nodes, 1 h 1 min after its start",
        "next: clusterrun diagnose r-1",
    ]


@pytest.mark.parametrize(
    ("event", "changes", "reason", "first", "second", "command"),
    [
        (
            ENDED,
            {"state": State.COMPLETED, "reason": "", "attempts": ()},
            "",
            "ended: COMPLETED",
            "run",
            "status",
        ),
        (ENDED, {"state": State.CANCELLED, "reason": "by ada"}, "", "ended: CANCELLED", "by ada", "status"),
        (
            ENDED,
            {"state": State.FAILED, "reason": "no fit nodes", "exit_code": 3, "attempts": ()},
            "",
            "ended: FAILED",
            "no fit nodes",
            "report",
        ),
        (ENDED, {"state": State.TIMEOUT, "reason": "time limit"}, "", "TIMEOUT", "time limit", "diagnose"),
        (HUNG, {"reason": ""}, "nothing has moved for 600 s", "hangs", "nothing has moved", "diagnose"),
        (RESTARTED, {"reason": ""}, "preempted in job 46", "continues in job 47", "preempted", "status"),
        (
            CANNOT_START,
            {"state": State.PENDING, "reason": "PartitionDown"},
            "",
            "cannot",
            "Partition",
            "status",
        ),
        (STARTED, {"reason": ""}, "", "has started", "run", "status"),
    ],
)
def test_each_event_has_its_first_line_and_its_next_command(
    event: str, changes: dict[str, object], reason: str, first: str, second: str, command: str
) -> None:
    lines = text(event, replace(RUNNING, **changes), reason=reason)
    assert first in lines[0] and lines[1].startswith(second)
    assert lines[-1] == f"next: clusterrun {command} r-1"


def test_foreign_text_adds_no_line_and_is_limited() -> None:
    failure = replace(
        FAILURE, why="x\r\nBcc: eve@example.org", error="\x1b[31m" + "y" * 5000, place="\udcff:1"
    )
    state = replace(FAILED_RUN, reason="z", attempts=(replace(ATTEMPT, failure=failure),))
    lines = text(ENDED, state, name="train\nBcc: eve@example.org " + "n" * 500)
    assert len(lines) == 7
    assert lines[0].startswith("train Bcc: eve@example.org nnn") and len(lines[0]) < 100
    assert lines[2] == "x Bcc: eve@example.org"
    assert len(lines[3]) == event_message.LONGEST_LINE
    assert all(line.isprintable() for line in lines)
    assert "\n".join(lines).encode()


def test_a_run_id_is_quoted_for_the_shell() -> None:
    assert text(ENDED, replace(FAILED_RUN, run_id="r; rm -rf ~"))[-1].endswith(" 'r; rm -rf ~'")


def test_users_are_notified_of_decisive_changes_of_a_run() -> None:
    assert [
        is_for_people(event, state, is_handover)
        for event, state, is_handover in (
            (STARTED, RUNNING, False),
            (FAILED, RUNNING, False),
            (FAILED, FAILED_RUN, False),  # the message about the end says it
            (RESTARTED, RUNNING, False),  # the message about the failure has said it
            (RESTARTED, RUNNING, True),
            (HUNG, RUNNING, False),
            (ENDED, FAILED_RUN, False),
        )
    ] == [False, True, False, False, True, True, True]
