"""Slurm's answer and the run's own state give one status, also if they contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.model import contract
from clusterrun.model.duration import moment
from clusterrun.model.frozen import replace
from clusterrun.model.record import Failure, OrphanReport, RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.operations.run_state import RunEvidence, judge, recorded_end
from clusterrun.slurm_text.reasons import explain
from tests.operations.values import ATTEMPT, FAILURE, NOW, RECORD, row, state

LOCAL = replace(RECORD, cluster="local", job_id="12.99")
QUEUED = replace(RECORD, job_id="")
FAILED = state(State.FAILED, reason="rank 3 on n1 exited with code 7", exit_code=7)
RESUBMITTED = state(State.PENDING, phase=Phase.QUEUED, reason="resubmitted as job 42 without n1")
AGAIN = state(
    epoch=1, attempts=(replace(ATTEMPT, failure=FAILURE), replace(ATTEMPT, epoch=1, reason="restart 1 of 3"))
)
OLD = {"updated_at": NOW - 400}
BEFORE = state(attempts=(replace(ATTEMPT, job_id="41"),), **OLD)
HANDED_OVER = state(
    State.PENDING,
    phase=Phase.QUEUED,
    reason="the time limit was reached; the run goes on in job 42",
    attempts=(replace(ATTEMPT, job_id="41", outcome="TIMEOUT"),),
)


WAITS = OrphanReport("41", "n1", NOW - 60, "it waits")
REQUEUES = replace(RECORD, spec=replace(RECORD.spec, requeue=True))


def evidence(**changes: Any) -> RunEvidence:
    return RunEvidence(**{"record": RECORD, "run_dir": "/runs/x", "now": NOW, **changes})


@pytest.mark.parametrize(
    "changes, answer",
    [
        # squeue and the coordinator agree
        ({"row": row("PENDING", reason="Priority")}, (State.PENDING, Phase.QUEUED)),
        ({"row": row()}, (State.RUNNING, Phase.STARTING)),
        ({"row": row(), "state": state()}, (State.RUNNING, Phase.TRAINING)),
        ({"row": row("COMPLETED"), "state": state(State.COMPLETED)}, (State.COMPLETED, Phase.ENDED)),
        # the coordinator is faster than Slurm
        ({"row": row("COMPLETING"), "state": state(State.COMPLETED)}, (State.COMPLETED, Phase.ENDED)),
        ({"row": row("RUNNING"), "state": FAILED}, (State.FAILED, Phase.ENDED)),
        # Slurm knows better
        ({"row": row("TIMEOUT"), "state": state(State.CANCELLED)}, (State.TIMEOUT, Phase.ENDED)),
        ({"row": row("PREEMPTED"), "state": FAILED}, (State.PREEMPTED, Phase.ENDED)),
        ({"row": row("NODE_FAIL"), "state": state()}, (State.NODE_FAIL, Phase.ENDED)),
        ({"row": row("OUT_OF_MEMORY"), "state": FAILED}, (State.OUT_OF_MEMORY, Phase.ENDED)),
        # the coordinator died without a word
        ({"row": row("FAILED"), "state": state(**OLD)}, (State.FAILED, Phase.ENDED)),
        ({"row": None, "state": state(**OLD)}, (State.FAILED, Phase.ENDED)),
        ({"row": None}, (State.FAILED, Phase.ENDED)),
        ({"row": row(start=NOW - 900), "state": state(**OLD)}, (State.RUNNING, Phase.TRAINING)),
        # what an older answer of Slurm says of a job that has ended since, and of one that had
        ({"answered": False, "row": row("TIMEOUT"), "asked_at": NOW - 600}, (State.TIMEOUT, Phase.ENDED)),
        ({"answered": False, "row": row(), "asked_at": NOW - 600}, (State.UNKNOWN, Phase.QUEUED)),
        ({"row": row("PENDING"), "asked_at": NOW - 5, "state": state()}, (State.RUNNING, Phase.TRAINING)),
        ({"row": row("PENDING"), "asked_at": NOW, "state": state()}, (State.PENDING, Phase.QUEUED)),
        # the job that continues without unfit nodes
        ({"row": row("PENDING"), "state": RESUBMITTED}, (State.PENDING, Phase.QUEUED)),
        ({"row": row(), "state": RESUBMITTED}, (State.RUNNING, Phase.STARTING)),
        ({"answered": False, "state": RESUBMITTED}, (State.UNKNOWN, Phase.QUEUED)),
        # the job that continues after the previous job, and a state that is older than its start
        ({"row": row(start=NOW - 60), "state": state(**OLD)}, (State.RUNNING, Phase.STARTING)),
        ({"row": row("PENDING", job_id="42"), "state": state(**OLD)}, (State.PENDING, Phase.QUEUED)),
        ({"row": row(job_id="42", start=None), "state": BEFORE}, (State.RUNNING, Phase.STARTING)),
        ({"row": row("COMPLETING"), "state": RESUBMITTED}, (State.PENDING, Phase.QUEUED)),
        ({"row": row("TIMEOUT"), "state": RESUBMITTED}, (State.TIMEOUT, Phase.ENDED)),
        ({"row": row("CANCELLED"), "state": RESUBMITTED}, (State.CANCELLED, Phase.ENDED)),
        # a line of --setup ended the script well, and nothing was started; files may come late
        ({"row": row("COMPLETED", end=NOW - 60)}, (State.FAILED, Phase.ENDED)),
        ({"row": row("COMPLETED", end=NOW - 5)}, (State.RUNNING, Phase.STARTING)),
        ({"row": row("COMPLETED", end=NOW - 60), "damaged": True}, (State.COMPLETED, Phase.ENDED)),
        # a node was lost on the way, and all ranks ended well
        ({"row": row("NODE_FAIL"), "state": state(State.COMPLETED)}, (State.COMPLETED, Phase.ENDED)),
        # the node of the coordinator died, and nothing of the job was left to say so
        ({"row": row("CANCELLED", nodelist="n1"), "state": state(**OLD)}, (State.NODE_FAIL, Phase.ENDED)),
        ({"row": row("FAILED", nodelist="n1"), "state": state(**OLD)}, (State.NODE_FAIL, Phase.ENDED)),
        ({"row": row("CANCELLED"), "state": state(**OLD)}, (State.CANCELLED, Phase.ENDED)),
        (
            {"row": row("CANCELLED", nodelist="n1"), "state": state(**OLD), "cancel_asked": True},
            (State.CANCELLED, Phase.ENDED),
        ),
        ({"row": row("CANCELLED", nodelist="n["), "state": state(**OLD)}, (State.CANCELLED, Phase.ENDED)),
        # queued again after an end
        ({"row": row("PENDING"), "state": state(State.PREEMPTED)}, (State.PENDING, Phase.QUEUED)),
        ({"row": row("REQUEUED"), "state": FAILED}, (State.PENDING, Phase.QUEUED)),
        ({"row": row(start=NOW - 1), "state": FAILED}, (State.RUNNING, Phase.STARTING)),
        # Slurm does not answer: unknown is never ended
        ({"answered": False}, (State.UNKNOWN, Phase.QUEUED)),
        ({"answered": False, "state": state()}, (State.RUNNING, Phase.TRAINING)),
        ({"answered": False, "state": state(**OLD)}, (State.UNKNOWN, Phase.TRAINING)),
        ({"answered": False, "state": FAILED}, (State.FAILED, Phase.ENDED)),
        # a word that nobody knows
        ({"row": row("HIBERNATING")}, (State.UNKNOWN, Phase.QUEUED)),
        ({"row": row("HIBERNATING"), "state": state()}, (State.RUNNING, Phase.TRAINING)),
        # cancelled
        ({"row": row("CANCELLED"), "cancel_asked": True}, (State.CANCELLED, Phase.ENDED)),
        ({"row": row("FAILED"), "cancel_asked": True, "state": state()}, (State.CANCELLED, Phase.ENDED)),
        ({"row": None, "cancel_asked": True}, (State.CANCELLED, Phase.ENDED)),
        # an answer to the submission that was never heard
        ({"record": QUEUED, "row": None, "now": NOW + 90}, (State.PENDING, Phase.QUEUED)),
        ({"record": QUEUED, "row": None, "now": NOW + 900}, (State.FAILED, Phase.ENDED)),
        ({"record": QUEUED, "row": None, "answered": False}, (State.UNKNOWN, Phase.QUEUED)),
        ({"record": QUEUED, "row": row()}, (State.RUNNING, Phase.STARTING)),
        # on this machine, or on one that cannot be seen from here
        ({"record": LOCAL, "alive": True}, (State.RUNNING, Phase.STARTING)),
        ({"record": LOCAL, "alive": True, "state": state()}, (State.RUNNING, Phase.TRAINING)),
        ({"record": LOCAL, "alive": False, "state": state()}, (State.FAILED, Phase.ENDED)),
        ({"record": LOCAL, "alive": False, "cancel_asked": True}, (State.CANCELLED, Phase.ENDED)),
        ({"record": LOCAL, "alive": False, "state": state(State.COMPLETED)}, (State.COMPLETED, Phase.ENDED)),
        ({"record": LOCAL, "alive": None, "state": state()}, (State.RUNNING, Phase.TRAINING)),
        ({"record": LOCAL, "alive": None, "state": state(**OLD)}, (State.UNKNOWN, Phase.TRAINING)),
    ],
)
def test_the_state_is_the_best_founded_word(changes: dict[str, Any], answer: tuple[State, Phase]) -> None:
    status = judge(evidence(**changes))
    assert (status.state, status.phase) == answer


NEVER = "DependencyNeverSatisfied"


@pytest.mark.parametrize(
    "changes, reason, hopeless",
    [
        (
            {"row": row("PENDING", reason=NEVER)},
            f"will never start: {explain(NEVER).meaning} (clusterrun cancel 41)",
            True,
        ),
        (
            {"row": row("PENDING", reason=NEVER), "before": "a (r1) was FAILED"},
            "will never start: a (r1) was FAILED",
            True,
        ),
        (
            {"row": row("CANCELLED", reason=NEVER)},
            f"never started: {explain(NEVER).meaning}",
            False,
        ),
        (
            {"row": row("CANCELLED", reason=NEVER), "before": "a (r1) was FAILED"},
            "never started: a (r1) was FAILED",
            False,
        ),
        (
            {"row": row("CANCELLED", reason=NEVER), "cancel_asked": True},
            "by clusterrun cancel, before it started",
            False,
        ),
        ({"row": row("PENDING", reason="Resources")}, "waits for nodes to become free", False),
    ],
)
def test_a_run_that_can_never_start_has_the_reason(
    changes: dict[str, Any], reason: str, hopeless: bool
) -> None:
    status = judge(evidence(**changes))
    assert (status.reason, status.hopeless) == (reason, hopeless)


def test_a_status_has_all_facts_of_an_ended_run() -> None:
    assert judge(evidence(row=row("FAILED", end=NOW - 3), state=FAILED)) == RunStatus(
        run_id=RECORD.run_id,
        job_id="41",
        name="train",
        cluster="slurm",
        state=State.FAILED,
        phase=Phase.ENDED,
        reason="rank 3 on n1 exited with code 7",
        nodes=2,
        gpus_per_node=4,
        world_size=8,
        nodelist="n[0-1]",
        attempt=0,
        submitted_at=NOW - 100,
        started_at=NOW - 50,
        ended_at=NOW - 4,
        exit_code=7,
        run_dir="/runs/x",
        heard_at=NOW - 2,
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"row": None, "state": state(**OLD)}, "ended without giving a reason"),
        ({"row": row("FAILED", nodelist="")}, "ended without giving a reason (FAILED); see job.out"),
        (
            {
                "row": row("FAILED", nodelist="n[0-1]"),
                "state": state(phase=Phase.PREFLIGHT, reason="clocks are compared"),
            },
            "ended without giving a reason on n0 (FAILED); see job.out; last message: clocks are compared",
        ),
        ({"row": row("FAILED", nodelist="n[1-")}, "ended without giving a reason (FAILED); see job.out"),
        (
            {"row": row("FAILED", job_id="42", nodelist="n[0-1]"), "state": HANDED_OVER},
            "the time limit was reached; ended without giving a reason on n0 (FAILED); see job.out",
        ),
        (
            {"row": row("FAILED", nodelist="n[0-1]", reason="JobLaunchFailure")},
            "ended without giving a reason on n0 (its script could not start, or was killed); see job.out",
        ),
        ({"record": QUEUED, "now": NOW + 900}, "was never queued"),
        (
            {"row": row(start=NOW - 900), "state": state(**OLD)},
            "6 min 40 s; no agent has reported that it gives the job back; "
            "where its ranks print nothing either (clusterrun logs): to end it, type scancel 41",
        ),
        (
            {"row": row(start=NOW - 900), "state": state(updated_at=NOW - 100)},
            "no heartbeat from its coordinator for 1 min 40 s",
        ),
        (
            {"row": row(start=NOW - 900), "state": state(**OLD), "message": WAITS},
            "6 min 40 s; n1 reported 1 min ago: it waits; to end it, type scancel 41",
        ),
        (
            {"row": row(start=NOW - 900), "state": state(**OLD), "message": replace(WAITS, at=NOW - 500)},
            "6 min 40 s; no agent has reported that it gives the job back; where",
        ),
        (
            {"row": row(start=NOW - 900), "state": state(**OLD), "record": REQUEUES},
            "logs): to start it again, type scontrol requeue 41; to end it, type scancel 41",
        ),
        (
            {"row": row(start=NOW - 900), "state": state(**OLD), "message": replace(WAITS, released=True)},
            "no heartbeat from its coordinator for 6 min 40 s; n1 gave the job back: it waits",
        ),
        ({"row": row(start=NOW - 60)}, "the coordinator has sent no heartbeat yet"),
        (
            {"row": row(start=NOW - 900)},
            "the coordinator has sent no heartbeat yet, in 15 min; no agent has reported that it gives the",
        ),
        (
            {"row": row("CANCELLED"), "state": state(**OLD), "message": replace(WAITS, released=True)},
            "n1 ended the job, whose coordinator was gone: it waits",
        ),
        (
            {"row": row("SUSPENDED", start=NOW - 900), "state": state(**OLD)},
            "suspended by Slurm: it keeps its nodes, and continues when it is resumed:"
            " scontrol resume 41, or",
        ),
        ({"row": row("STOPPED", start=NOW - 900), "state": state(**OLD)}, "is resumed: scancel -s CONT 41"),
        ({"answered": False, "state": state(**OLD)}, "the run's last heartbeat is 6 min 40 s old"),
        ({"row": row("CANCELLED"), "cancel_asked": True}, "by clusterrun cancel, before it started"),
        ({"answered": False, "row": row("PENDING"), "asked_at": NOW - 60}, "1 min ago it reported PENDING"),
        ({"row": row("PENDING"), "state": RESUBMITTED}, "resubmitted as job 42 without n1"),
        (
            {"row": row("PENDING", job_id="42", reason="Priority"), "state": HANDED_OVER},
            "the time limit was reached; the run goes on in job 42; waits: jobs with a higher priority",
        ),
        (
            {"row": row("PENDING", job_id="42", reason="Dependency"), "state": HANDED_OVER},
            "goes on in job 42; waits until the job before it has ended completely",
        ),
        (
            {"row": row("PENDING", job_id="42", reason="Priority"), "state": BEFORE},
            "continues in job 42: waits: jobs with a higher priority",
        ),
        ({"row": row("PENDING", reason="BeginTime"), "state": BEFORE}, "queued again: waits for its begin"),
        (
            {"row": row("TIMEOUT"), "state": HANDED_OVER},
            "its time limit was reached; it did not continue: the time limit was reached",
        ),
        (
            {"row": row("CANCELLED", nodelist="n1"), "state": state(**OLD)},
            "node n0 was lost, with the coordinator of the run",
        ),
        (
            {"row": row("NODE_FAIL", nodelist="n0"), "state": state(**OLD)},
            "node n1 was lost; --requeue continues such a run",
        ),
        ({"row": row("FAILED", nodelist="n0"), "state": state(State.NODE_FAIL)}, "Slurm took n1 out"),
        (
            {
                "row": row("FAILED", nodelist="n0"),
                "state": state(State.NODE_FAIL),
                "node_reason": "spot reclaimed",
            },
            "Slurm took n1 out of the job: spot reclaimed",
        ),
        (
            {"row": row(nodelist="n1", start=NOW - 900), "state": state(**OLD)},
            "no heartbeat from its coordinator for 6 min 40 s; node n0 was lost, with the coordinator of the"
            " run; no agent has reported that it gives the job back; to end it, type scancel 41",
        ),
        (
            {
                "row": row(nodelist="n1", start=NOW - 900),
                "state": state(attempts=(replace(ATTEMPT, nodes=()),), **OLD),
            },
            "6 min 40 s; n0, where it ran, is not a node of the job; no agent has reported that it gives",
        ),
        (
            {"row": row("CANCELLED", job_id="42"), "state": HANDED_OVER},
            "job 42 was cancelled, but not by clusterrun cancel; it did not continue: the time limit"
            " was reached",
        ),
        ({"row": row(), "state": AGAIN}, f"restart 1 of 3, after {FAILURE.why}"),
        ({"row": row("CANCELLED")}, "sinfo -R"),
        ({"row": row("CANCELLED", nodelist="")}, "not by clusterrun cancel"),
        ({"row": row("PENDING", reason="Resources"), "state": FAILED}, "queued again: "),
        ({"state": state(State.FAILED, attempts=(replace(ATTEMPT, failure=FAILURE),))}, FAILURE.why),
    ],
)
def test_the_reason_has_the_observation(changes: dict[str, Any], message: str) -> None:
    assert message in judge(evidence(**changes)).reason


def test_a_task_of_an_array_that_slurm_forgot_before_it_began_was_cancelled() -> None:
    task = replace(RECORD, job_id="41_3")
    for more, expected in (
        ({}, State.CANCELLED),
        ({"script_error": "no python"}, State.FAILED),
        ({"state": state(updated_at=NOW - 9000)}, State.FAILED),
    ):
        assert judge(evidence(record=task, **more)).state is expected


def test_the_reason_of_the_coordinator_for_the_same_end_replaces_that_of_slurm() -> None:
    limit = state(State.TIMEOUT, reason="the job's time limit was reached")
    assert judge(evidence(row=row("TIMEOUT"), state=limit)).reason.startswith(f"{limit.reason}; --time")
    hung = replace(limit, reason=f"{limit.reason}{contract.STALLED}5 min")
    assert judge(evidence(row=row("TIMEOUT"), state=hung)).reason == hung.reason


def test_the_end_at_the_time_limit_names_the_options_that_help_unless_the_run_has_them() -> None:
    for record, options in ((RECORD, 2), (REQUEUES, 0), (replace(RECORD, in_allocation=True), 0)):
        reason = judge(evidence(row=row("TIMEOUT"), record=record)).reason
        assert sum(option in reason for option in ("--time", "--requeue")) == options


def test_a_failure_that_was_survived_is_not_the_end_of_a_run() -> None:
    survived = state(State.COMPLETED, attempts=(replace(ATTEMPT, failure=FAILURE),))
    ended = state(State.FAILED, attempts=(replace(ATTEMPT, failure=FAILURE),))
    failed_at = [judge(evidence(row=row(), state=run_state)).failed_at for run_state in (survived, ended)]
    assert failed_at == [None, FAILURE.at]


def test_a_waiting_run_tells_when_slurm_means_to_start_it_where_slurm_knows() -> None:
    waits = row("PENDING", reason="Resources", start=NOW + 7200)
    assert judge(evidence(row=waits)).reason == (
        f"waits for nodes to become free; Slurm expects to start it about {moment(NOW + 7200)}, in 2 h"
    )
    for no_estimate in (None, NOW - 1, NOW + 365 * 86400):
        reason = judge(evidence(row=replace(waits, start=no_estimate))).reason
        assert reason == "waits for nodes to become free"


def test_the_nodes_of_the_newest_attempt_are_shown_where_slurm_has_forgotten_them() -> None:
    assert judge(evidence(state=FAILED)).nodelist == "n[0-1]"


def test_a_job_that_ends_keeps_the_nodes_that_slurm_has_cleared() -> None:
    clearing = row("COMPLETING", nodelist="n1")
    assert judge(evidence(row=clearing, state=FAILED)).nodelist == "n[0-1]"
    assert judge(evidence(row=clearing)).nodelist == "n1"
    assert judge(evidence(row=row("RUNNING", nodelist="n[0-2]"), state=FAILED)).nodelist == "n[0-2]"


def test_slurms_answer_is_stored_before_slurm_forgets_it() -> None:
    then = judge(evidence(row=row("TIMEOUT", end=NOW - 3), state=state(State.CANCELLED)))
    later = judge(evidence(state=state(State.CANCELLED)))
    assert recorded_end(then, state(State.CANCELLED), NOW, later) == then


def test_the_nodes_of_a_run_with_a_silent_coordinator_are_stored() -> None:
    then = judge(evidence(row=replace(row("FAILED"), nodelist="n[0-1]")))
    later = judge(evidence())
    assert (later.nodelist, recorded_end(then, None, NOW, later)) == ("", then)


def test_a_seen_end_stays_while_slurm_does_not_answer() -> None:
    then = judge(evidence(row=row("CANCELLED", end=NOW - 3), cancel_asked=True))
    unheard = judge(evidence(answered=False, cancel_asked=True))
    assert (unheard.state, recorded_end(then, None, NOW, unheard)) == (State.UNKNOWN, then)


def test_a_run_cancelled_while_it_waited_keeps_the_time_of_its_end() -> None:
    then = judge(evidence(row=row("CANCELLED", end=NOW - 3), cancel_asked=True))
    assert recorded_end(then, None, NOW, judge(evidence(cancel_asked=True))) == then


def test_a_run_that_continued_after_its_end_is_judged_again() -> None:
    then = judge(evidence(row=row("PREEMPTED"), state=state(State.PREEMPTED)))
    anew = state(updated_at=NOW + 60)
    now = judge(evidence(now=NOW + 61, row=row(), state=anew))
    assert recorded_end(then, anew, NOW, now).state is State.RUNNING


def test_a_good_end_that_was_seen_late_replaces_a_silent_one() -> None:
    silent = judge(evidence(row=None))
    late = judge(evidence(state=state(State.COMPLETED)))
    assert recorded_end(silent, state(State.COMPLETED), NOW, late).state is State.COMPLETED


def test_a_script_that_ended_before_the_coordinator_is_reported_with_its_output() -> None:
    error = "--setup ended with exit code 1 on n1: module load cuda"
    for status in (
        judge(evidence(row=row("FAILED"), script_error=error)),
        judge(evidence(script_error=error)),
    ):
        assert (status.state, status.reason) == (State.FAILED, f"ended before any rank: {error}")


HYDRA = (
    "Could not override 'model.lr'.",
    "Key 'lr' is not in struct",
    "    full_key: model.lr",
    "",
    "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
)
TRACEBACK = ("Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "KeyError: 'x'")


@pytest.mark.parametrize(
    "failure, error",
    [
        (replace(FAILURE, last_lines=TRACEBACK), "KeyError: 'x'"),
        (replace(FAILURE, last_lines=HYDRA), "Could not override 'model.lr'. Key 'lr' is not in struct"),
        (replace(FAILURE, last_lines=("epoch 3, loss 0.2",)), "printed last: epoch 3, loss 0.2"),
        (replace(FAILURE, last_lines=()), ""),
        (replace(FAILURE, last_lines=TRACEBACK, code=-9), ""),
        (replace(FAILURE, last_lines=TRACEBACK, noticed=True), ""),
    ],
)
def test_the_error_of_the_failed_rank_is_part_of_the_status(failure: Failure, error: str) -> None:
    attempts = (replace(ATTEMPT, failure=failure),)
    states = [state(end, attempts=attempts) for end in (State.FAILED, State.COMPLETED)]
    assert [judge(evidence(state=run_state)).error for run_state in states] == [error, ""]
