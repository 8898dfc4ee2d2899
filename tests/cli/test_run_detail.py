"""The attempts of a run for people and as JSON: each with why, where and how far; last words said once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from clusterrun.cli.run_detail import left_out, lineage, progress_text
from clusterrun.cli.status_view import document, reason_of
from clusterrun.model.document import encode
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, Failure, RunRecord, RunState, RunStatus
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context
from clusterrun.operations.run_details import ended_attempts

AT = 1_800_000_000.0
FAILURE = Failure(3, "n2", 7, AT + 50, "rank 3 on n2 exited with code 7", ("last words",))
LOST = Failure(-1, "n1", 0, AT + 190, "node n1 was lost", ("silence",))
NODES = ("n1", "n2")
ATTEMPTS = (
    Attempt(0, "first start", NODES, AT, AT + 60, "FAILED", FAILURE, "first", "41", 12, 10),
    Attempt(1, "restart 1 of 3", NODES, AT + 60, AT + 200, "NODE_FAIL", LOST, "failure", "41"),
    Attempt(2, "", ("n2", "n3"), AT + 300, cause="node", job_id="42", step=30),
)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_each_attempt_shows_its_cause_nodes_progress_and_end() -> None:
    assert lineage(ATTEMPTS, lambda epoch: "passed in 3 s" if epoch == 0 else "") == [
        "",
        "attempt 0 (first start) in job 41, 2027-01-15 08:00:00 UTC to 08:01:00 (1 min), on n[1-2]: FAILED",
        "  pre-flight passed in 3 s",
        "  reached    step 12, checkpoint 10",
        "  first failure, 2027-01-15 08:00:50 UTC: rank 3 on n2 exited with code 7",
        "",
        "attempt 1 (restart 1 of 3) in job 41, 2027-01-15 08:01:00 UTC to 08:03:20 (2 min 20 s),"
        " on n[1-2]: NODE_FAIL",
        "  first failure, 2027-01-15 08:03:10 UTC: node n1 was lost",
        "  its last lines:",
        "    silence",
        "",
        "attempt 2 (node) in job 42, since 2027-01-15 08:05:00 UTC, on n[2-3]",
        "  reached    step 30",
    ]


@pytest.mark.usefixtures("utc")
def test_attempts_of_a_run_with_one_job_do_not_repeat_the_job() -> None:
    assert lineage(ATTEMPTS[:1], lambda epoch: "")[1].startswith("attempt 0 (first start), 2027")
    assert lineage((), lambda epoch: "") == []


@pytest.mark.parametrize(
    "step, checkpoint, message",
    [(-1, -1, ""), (0, -1, "step 0"), (7, 5, "step 7, checkpoint 5"), (-1, 5, "checkpoint 5")],
)
def test_the_progress_of_an_attempt_is_shown_if_the_script_reports_it(
    step: int, checkpoint: int, message: str
) -> None:
    assert progress_text(step, checkpoint) == message


@pytest.fixture
def context(tmp_path: Path) -> Context:
    created = Context({"CLUSTERRUN_HOME": str(tmp_path / "home")})
    created.store.claim(RUN)
    spec = JobSpec(command=("train.py",), cwd="/", name="train", nodes=2)
    created.store.save(RunRecord(RUN, "train", "local", "token", spec, AT, "1.1", "elsewhere"))
    state = RunState(RUN, 2, State.COMPLETED, Phase.ENDED, "", "n2", 7, AT + 400, ATTEMPTS, AT, AT + 400, 0)
    Path(created.store.paths(RUN).state).write_text(json.dumps(encode(state)))
    return created


RUN = "20270115-080000-0000-train"


def test_json_of_a_named_run_has_the_files_of_every_attempt(context: Context) -> None:
    result = context.inquiry().statuses([RUN])
    (entry,) = document(result, context)["runs"]
    assert {name: entry[name] for name in ("step", "checkpoint", "heard_at")} == {
        "step": 30,
        "checkpoint": 10,
        "heard_at": "2027-01-15T08:06:40.000+00:00",
    }
    assert entry["attempts"][1] == {
        "attempt": 1,
        "cause": "failure",
        "reason": "restart 1 of 3",
        "nodes": list(NODES),
        "job_id": "41",
        "started_at": "2027-01-15T08:01:00.000+00:00",
        "ended_at": "2027-01-15T08:03:20.000+00:00",
        "outcome": "NODE_FAIL",
        "decision": "",
        "step": None,
        "checkpoint": None,
        "failure": {
            "rank": None,
            "node": "n1",
            "code": 0,
            "why": "node n1 was lost",
            "at": "2027-01-15T08:03:10.000+00:00",
            "error": "",
            "place": "",
        },
        "ranks_at": None,
    }
    assert [attempt["failure"] is None for attempt in entry["attempts"]] == [False, False, True]
    assert "attempts" not in document(result)["runs"][0]


def test_the_last_attempt_ends_with_the_run_if_its_coordinator_recorded_no_end() -> None:
    state = RunState(RUN, 2, State.RUNNING, Phase.TRAINING, "", "n2", 1, AT, ATTEMPTS)
    status = RunStatus(RUN, state=State.CANCELLED, phase=Phase.ENDED, ended_at=AT + 400)
    *earlier, last = ended_attempts(state, status)
    assert (tuple(earlier), last.ended_at, last.outcome) == (ATTEMPTS[:2], AT + 400, "CANCELLED")
    assert ended_attempts(state, replace(status, state=State.RUNNING)) == ATTEMPTS


def test_a_damaged_state_leaves_a_document_without_attempts(context: Context) -> None:
    Path(context.store.paths(RUN).state).write_text("{")
    (entry,) = document(context.inquiry().statuses([RUN]), context)["runs"]
    assert (entry["attempts"], entry["step"], entry["heard_at"]) == ([], None, None)


def test_the_table_shows_the_progress_of_a_training_run(context: Context) -> None:
    (status,) = context.inquiry().statuses([RUN])
    live = replace(status, state=State.RUNNING, phase=Phase.TRAINING, reason="restart 1 of 3")
    assert [reason_of(element, AT) for element in (live, replace(live, reason=""), status)] == [
        "restart 1 of 3; step 30",
        "step 30",
        "",
    ]


def test_a_node_that_a_later_job_uses_again_is_not_left_out() -> None:
    state = RunState("x", 2, State.RUNNING, Phase.TRAINING, "", "n2", 1, AT, attempts=ATTEMPTS)
    assert left_out(replace(state, excluded=("n1", "n3", "n4"), spares=("n4",))) == ["n1"]


def test_a_node_that_the_last_attempt_lost_is_left_out() -> None:
    state = RunState("x", 1, State.FAILED, Phase.ENDED, "", "n2", 1, AT, attempts=ATTEMPTS[:2])
    assert left_out(replace(state, excluded=("n1",))) == ["n1"]
