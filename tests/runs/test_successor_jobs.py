"""A run over several jobs: which of them tells how it is, and what cancel takes out of the queue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.api import find, statuses
from clusterrun.model.errors import BadInput, SchedulerUnreachable
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec, OnUnfit
from clusterrun.model.states import Phase, State
from clusterrun.operations.cancel import cancel
from clusterrun.operations.context import Context
from clusterrun.operations.submit import draft
from clusterrun.runs.sweep_records import SweepPoint, SweepRecord, Sweeps
from clusterrun.slurm.queries import JobRow
from tests.logs.test_follow import HandClock
from tests.operations.test_status import Slurm, add, clock, context, slurm, tell
from tests.operations.values import ATTEMPT, NOW, RECORD, row, state

__all__ = ["clock", "context", "slurm"]

GOES_ON: JobSpec = replace(RECORD.spec, requeue=True, requeue_by="chain")
OVER = "the time limit was reached; the run goes on in job 42"
HANDED_OVER = state(State.PENDING, phase=Phase.QUEUED, reason=OVER)


@pytest.fixture(autouse=True)
def time_passes(slurm: Slurm, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every query of Slurm take a moment, so that an answer is older than the next query."""
    ask = slurm.jobs

    def slowly() -> tuple[JobRow, ...]:
        clock.time += 0.01
        return ask()

    monkeypatch.setattr(slurm, "jobs", slowly)


def chain(context: Context, waiting: str = "42", **changes: Any) -> str:
    chosen = add(context, **{"spec": GOES_ON, **changes})
    if waiting:
        note(context, chosen, "next", waiting)
    return chosen


def note(context: Context, chosen: str, file: str, job_id: str) -> None:
    Path(getattr(context.store.paths(chosen), file)).write_text(json.dumps({"job_id": job_id}))


def other(job_id: str, word: str = "RUNNING", **changes: Any) -> JobRow:
    """Return a job of another user, or of another run."""
    return row(word, **{"job_id": job_id, "comment": "", "name": "theirs", **changes})


def ended(status: Any) -> bool:
    return bool(status.state.ended)


@pytest.mark.parametrize(
    "word", ["TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "COMPLETED", "COMPLETING"]
)
def test_a_run_between_two_jobs_is_pending_as_the_next_job(context: Context, slurm: Slurm, word: str) -> None:
    chain(context, run_state=HANDED_OVER)
    slurm.rows = [row(word), row("PENDING", job_id="42", reason="Priority")]
    (status,) = statuses(context=context)
    assert (status.state, status.phase, status.job_id) == (State.PENDING, Phase.QUEUED, "42")
    assert status.reason == f"{OVER}; waits: jobs with a higher priority are ahead"


def test_a_run_whose_first_node_died_silently_continues_in_the_waiting_job(
    context: Context, slurm: Slurm
) -> None:
    before = (replace(ATTEMPT, job_id="41"),)
    chosen = chain(context, run_state=state(updated_at=NOW - 100, attempts=before))
    slurm.rows = [row("NODE_FAIL"), row("PENDING", job_id="42", reason="Resources")]
    (status,) = statuses(context=context)
    assert (status.state, status.reason) == (
        State.PENDING,
        "continues in job 42: waits for nodes to become free",
    )
    assert context.store.ended(chosen) is None


def test_a_waiting_job_does_not_change_a_run_whose_job_lives(context: Context, slurm: Slurm) -> None:
    chain(context, run_state=state())
    slurm.rows = [row(), row("PENDING", job_id="42", reason="Dependency")]
    (status,) = statuses(context=context)
    assert (status.state, status.job_id) == (State.RUNNING, "41")


def test_a_waiting_job_does_not_keep_an_ended_run_alive(context: Context, slurm: Slurm) -> None:
    chain(context, run_state=state(State.FAILED))
    slurm.rows = [row("FAILED"), row("PENDING", job_id="42", reason="Dependency")]
    assert statuses(context=context)[0].state is State.FAILED


def test_an_unrecorded_job_is_recognised_by_its_token(context: Context, slurm: Slurm) -> None:
    chain(context, waiting="", run_state=HANDED_OVER)
    slurm.rows = [row("TIMEOUT"), row("PENDING", job_id="42", reason="Priority")]
    assert statuses(context=context)[0].job_id == "42"


def test_number_and_name_identify_a_job_at_sites_without_comments(context: Context, slurm: Slurm) -> None:
    chain(context, run_state=HANDED_OVER)
    slurm.rows = [row("TIMEOUT", comment=""), row("PENDING", job_id="42", comment="")]
    assert statuses(context=context)[0].job_id == "42"


def test_a_reused_number_belongs_to_another_runs_job(context: Context, slurm: Slurm) -> None:
    chosen = add(context, run_state=state(updated_at=NOW - 100))
    slurm.rows = [row(comment="clusterrun:another:deadbeef")]
    (status,) = statuses(context=context)
    assert (status.state, "Slurm no longer knows the job" in status.reason) == (State.FAILED, True)
    cancel(context, [chosen], print)
    assert slurm.cancelled == []


@pytest.mark.parametrize("file", ["next", "successor"])
def test_a_file_that_names_somebody_elses_job_moves_neither_status_nor_cancel(
    context: Context, slurm: Slurm, file: str
) -> None:
    chosen = chain(context, waiting="")
    note(context, chosen, file, "99")
    slurm.rows = [row(), other("99")]
    (status,) = statuses(context=context)
    cancel(context, [chosen], print)
    assert (status.job_id, status.state, slurm.cancelled) == ("41", State.RUNNING, ["41"])


def test_a_damaged_file_hides_no_job_and_is_named(context: Context, slurm: Slurm) -> None:
    chosen = chain(context, waiting="", run_state=HANDED_OVER)
    for file in ("next", "successor"):
        Path(getattr(context.store.paths(chosen), file)).write_text("{")
    slurm.rows = [row("TIMEOUT"), row("PENDING", job_id="42")]
    status = find(chosen, context).status()
    assert (status.state, status.job_id) == (
        State.PENDING,
        "42",
    ) and "successor.json is damaged" in status.reason
    cancel(context, [chosen], print)
    assert slurm.cancelled == ["42"]


def test_cancel_ends_the_running_and_the_waiting_job(context: Context, slurm: Slurm) -> None:
    chosen = chain(context, run_state=state())
    slurm.rows = [row(), row("PENDING", job_id="42", reason="Dependency"), other("43")]
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.CANCELLED]
    assert slurm.cancelled == ["41", "42"]


def test_cancel_between_two_jobs_ends_the_run(context: Context, slurm: Slurm) -> None:
    chosen = chain(context, run_state=HANDED_OVER)
    slurm.rows = [row("TIMEOUT"), row("PENDING", job_id="42", reason="Priority")]
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.CANCELLED]
    assert slurm.cancelled == ["42"]


def test_a_job_that_was_queued_while_the_run_was_cancelled_is_ended_too(
    context: Context, slurm: Slurm
) -> None:
    chosen = chain(context, waiting="", run_state=state())
    slurm.rows = [row()]

    def late(ids: Sequence[str]) -> None:
        Slurm.cancel(slurm, ids)
        if "42" not in slurm.cancelled and not any(job.job_id == "42" for job in slurm.rows):
            slurm.rows.append(row("PENDING", job_id="42", reason="Dependency"))
            tell(context, chosen, state(State.CANCELLED))

    slurm.cancel = late  # type: ignore[method-assign]
    assert all(ended(s) for _, s in cancel(context, [chosen], print))
    assert slurm.cancelled == ["41", "42"]


def test_a_job_that_is_requeued_while_it_is_cancelled_is_ended_again(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = chain(context, waiting="", run_state=HANDED_OVER)
    slurm.rows = [row("COMPLETING")]
    slurm.cancel = lambda ids: slurm.cancelled.extend(ids)  # type: ignore[method-assign]

    def back() -> None:
        slurm.rows = [row("PENDING", reason="BeginTime")]
        slurm.cancel = lambda ids: Slurm.cancel(slurm, ids)  # type: ignore[method-assign]

    clock.acts = [back]
    assert all(ended(s) for _, s in cancel(context, [chosen], print))
    assert slurm.cancelled == ["41", "41"]


def test_a_waiting_job_of_an_ended_run_is_cancelled(context: Context, slurm: Slurm) -> None:
    chosen = chain(context, run_state=state(State.FAILED))
    slurm.rows = [row("FAILED"), row("PENDING", job_id="42", reason="Dependency")]
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.FAILED]
    assert (slurm.cancelled, context.store.cancel_asked(chosen)) == (["42"], False)


def test_a_cancel_request_stays_with_a_silent_controller_and_may_be_repeated(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    chosen = chain(context, run_state=state(updated_at=NOW))
    slurm.down = True
    clock.acts = [lambda: tell(context, chosen, state(State.CANCELLED))]
    with pytest.raises(SchedulerUnreachable) as caught:
        cancel(context, [chosen], print)
    assert "the run directory holds the request" in caught.value.remedy
    assert caught.value.remedy.endswith(f"type again: clusterrun cancel {chosen}")
    slurm.down, slurm.rows = False, [row("CANCELLED"), row("PENDING", job_id="42", reason="Dependency")]
    assert [s.state for _, s in cancel(context, [chosen], print)] == [State.CANCELLED]
    assert slurm.cancelled == ["42"]


def test_two_simultaneous_cancels_do_no_harm(context: Context, slurm: Slurm) -> None:
    chosen = chain(context, run_state=state())
    slurm.rows = [row(), row("PENDING", job_id="42", reason="Dependency")]
    again: list[Any] = []

    def beside(ids: Sequence[str]) -> None:
        slurm.cancel = lambda ids: Slurm.cancel(slurm, ids)  # type: ignore[method-assign]
        again.extend(cancel(context, [chosen], print))
        Slurm.cancel(slurm, ids)

    slurm.cancel = beside  # type: ignore[method-assign]
    assert all(ended(s) for _, s in [*cancel(context, [chosen], print), *again])
    assert set(slurm.cancelled) == {"41", "42"}


def test_a_run_that_cannot_continue_costs_no_further_query(context: Context, slurm: Slurm) -> None:
    chosen = add(context)
    slurm.rows = [row()]
    cancel(context, [chosen], print)
    assert slurm.asked == ["jobs", "jobs"]


def test_no_run_is_queued_after_a_run_whose_last_job_is_missing(context: Context, slurm: Slurm) -> None:
    slurm.why_not, slurm.cluster_name, slurm.partitions = lambda: "", lambda: "alps", lambda: ()  # type: ignore[attr-defined]
    slurm.rows = [row("PENDING")]
    of_chain = chain(context, waiting="")
    of_unfit = add(context, at=NOW + 2, job_id="51", spec=replace(RECORD.spec, on_unfit=OnUnfit.RESUBMIT))
    for options in (
        {"after": (of_chain,)},
        {"after": (of_unfit,)},
        {"sbatch": ("dependency=singleton,afterany:7:41?afterok:9",)},
    ):
        with pytest.raises(BadInput, match="may end in a job that is not queued yet"):
            draft(JobSpec(("true",), cwd="/", **options), context)
    begun = draft(JobSpec(("true",), cwd="/", sbatch=("dependency=after:41+5",)), context)
    assert "#SBATCH --dependency=after:41+5\n" in begun.plan.script
    of_requeue = add(context, at=NOW + 1, spec=replace(GOES_ON, requeue_by="requeue"))
    drafted = draft(JobSpec(("true",), cwd="/", after=(of_requeue,)), context)
    assert "#SBATCH --dependency=afterok:41\n" in drafted.plan.script


def test_a_run_after_a_sweep_waits_for_all_points_that_have_not_completed(
    context: Context, slurm: Slurm
) -> None:
    slurm.why_not, slurm.cluster_name, slurm.partitions = lambda: "", lambda: "alps", lambda: ()  # type: ignore[attr-defined]
    slurm.rows = [row("PENDING", job_id=job_id) for job_id in ("41_0", "41_1")]
    ids = [add(context, f"41_{task}", NOW + task, token=f"token_{task}") for task in range(2)]
    completed = add(context, "41_3", NOW + 3, state(State.COMPLETED))
    points = tuple(
        SweepPoint((("lr", str(place)),), run_id) for place, run_id in enumerate([*ids, completed])
    )
    sweep = SweepRecord(f"{ids[0][:20]}-grid", "grid", RECORD.spec, points, NOW)
    Sweeps(context.store).save(sweep)
    spec = JobSpec(("true",), cwd="/", after=("grid",))
    assert "#SBATCH --dependency=afterok:41_0:41_1\n" in draft(spec, context).plan.script
    Sweeps(context.store).save(replace(sweep, points=(*points, SweepPoint((("lr", "9"),)))))
    with pytest.raises(BadInput, match="1 points of this sweep are not queued"):
        draft(spec, context)
