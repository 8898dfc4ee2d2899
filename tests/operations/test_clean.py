"""A clean removes runs that have surely ended, chosen by age, state, size and name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.local import processes
from clusterrun.model.frozen import replace
from clusterrun.model.states import State
from clusterrun.operations.clean import SURE_SECONDS, CleanChoice, CleanPlan, plan, remove
from clusterrun.operations.context import Context
from tests.logs.test_follow import HandClock
from tests.operations.test_status import Slurm, add, clock, context, slurm
from tests.operations.values import NOW, row, state

__all__ = ["clock", "context", "slurm"]  # fixtures


def quiet(_: str) -> None:
    pass


def ended(context: Context, word: State = State.COMPLETED, days: float = 0.0, **changes: object) -> str:
    """Record a run that ended ``days`` ago by its coordinator's report."""
    then = NOW - days * 86400
    run_state = state(word, ended_at=then, updated_at=then, started_at=then - 60)
    return add(context, "9999", then - 100, run_state, **{"submitted_at": then - 100, **changes})


def going(planned: CleanPlan) -> list[str]:
    return [run.status.run_id for run in planned.going]


def test_age_counts_from_the_end(context: Context) -> None:
    old, young = ended(context, days=40), ended(context, days=20)
    planned = plan(context, CleanChoice(before=NOW - 30 * 86400), quiet)
    assert (going(planned), planned.not_removed) == ([old], ())
    assert [run.status.run_id for run in remove(context, planned, quiet).runs] == [old]
    assert context.store.ids() == [young]
    assert os.listdir(context.store.live) == []


def test_state_size_and_the_newest_are_chosen_too(context: Context) -> None:
    failed = [ended(context, State.FAILED, days) for days in (9, 8, 7)]
    well = ended(context, days=9)
    of_state = CleanChoice(states=(State.FAILED,))
    assert sorted(going(plan(context, of_state, quiet))) == sorted(failed)
    assert sorted(going(plan(context, replace(of_state, keep=1), quiet))) == sorted(failed[:2])
    Path(context.store.paths(well).run_dir, "big").write_bytes(os.urandom(3 << 20))
    assert going(plan(context, CleanChoice(larger=2 << 20), quiet)) == [well]
    assert going(plan(context, CleanChoice(named=(well,)), quiet)) == [well]


def test_the_largest_run_is_first_and_the_freed_space_is_reported(context: Context) -> None:
    small, large = ended(context, days=40), ended(context, days=39)
    Path(context.store.paths(large).run_dir, "big").write_bytes(os.urandom(1 << 20))
    planned = plan(context, CleanChoice(), quiet)
    assert going(planned) == [large, small]
    assert planned.holds >= planned.frees >= 1 << 20
    assert planned.unmeasured == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_lives_stays(context: Context, slurm: Slurm, named: bool) -> None:
    slurm.rows = [row(job_id="41")]
    live = add(context, "41", NOW - 90 * 86400, state(updated_at=NOW - 1))
    planned = plan(context, CleanChoice(named=(live,) if named else ()), quiet)
    assert going(planned) == []
    if named:
        assert planned.not_removed == ((live, f"it is RUNNING: clusterrun cancel {live} ends it"),)


def test_a_run_of_unknown_state_stays_with_a_reason(context: Context, slurm: Slurm) -> None:
    slurm.down = True
    lost = add(context, "41", NOW - 90 * 86400, state(updated_at=NOW - 90 * 86400))
    Path(context.store.paths(damaged := ended(context, days=90)).record).write_text("{")
    planned = plan(context, CleanChoice(), quiet)
    assert (going(planned), sorted(run_id for run_id, _ in planned.not_removed)) == (
        [],
        sorted([lost, damaged]),
    )


def test_a_run_of_which_a_job_still_waits_stays(context: Context, slurm: Slurm) -> None:
    chained = ended(context, State.FAILED, days=2)
    slurm.rows = [row("PENDING", job_id="10001")]
    planned = plan(context, CleanChoice(), quiet)
    assert planned.not_removed == ((chained, "its job 10001 is PENDING"),)


def test_an_end_that_slurm_does_not_confirm_counts_after_a_day(
    context: Context, slurm: Slurm, clock: HandClock
) -> None:
    slurm.down = True
    only = ended(context, State.FAILED, days=0.1)
    (staying,) = plan(context, CleanChoice(), quiet).not_removed
    assert staying == (only, "Slurm did not confirm its end, and its last heartbeat is less than a day old")
    clock.time += SURE_SECONDS
    assert going(plan(context, CleanChoice(), quiet)) == [only]


def test_a_run_of_another_cluster_stays_for_a_day(context: Context, clock: HandClock) -> None:
    only = ended(context, State.FAILED, days=0.1, slurm="there@ctl2")
    (staying,) = plan(context, CleanChoice(), quiet).not_removed
    assert staying == (
        only,
        "its jobs are on the cluster there, and its last heartbeat is less than a day old",
    )
    clock.time += SURE_SECONDS
    assert going(plan(context, CleanChoice(), quiet)) == [only]


def test_a_local_run_whose_coordinator_still_ends_stays(context: Context) -> None:
    own_process = processes.identity(os.getpid())
    only = ended(context, days=2, cluster="local", host=os.uname().nodename)
    assert going(plan(context, CleanChoice(), quiet)) == [only]
    alive = ended(context, days=2, cluster="local", host=os.uname().nodename)
    record = Path(context.store.paths(alive).record)
    record.write_text(record.read_text().replace('"9999"', f'"{own_process}"'))
    assert plan(context, CleanChoice(), quiet).not_removed == ((alive, "its coordinator still runs"),)


def test_a_run_that_lives_again_when_the_question_is_answered_stays(context: Context, slurm: Slurm) -> None:
    only = ended(context, State.FAILED, days=2)
    planned = plan(context, CleanChoice(), quiet)
    assert going(planned) == [only]
    record = context.store.read(only)
    slurm.rows = [row(job_id="9999", comment=f"clusterrun:{only}:{record.token}", start=NOW - 1)]
    context.clock.time += 60  # type: ignore[attr-defined]
    assert remove(context, planned, quiet).runs == ()
    assert context.store.ids() == [only]


def test_an_interrupted_clean_is_finished(context: Context) -> None:
    only = ended(context, days=2)
    leftover = Path(context.store.runs, ".removed-20261120-074500-k3f9-train")
    (leftover / "attempts").mkdir(parents=True)
    (leftover / "attempts/00000.out").write_text("x")
    planned = plan(context, CleanChoice(before=1.0), quiet)
    assert [path for path, _ in planned.leftovers] == [str(leftover)]
    assert remove(context, planned, quiet).finished == planned.leftovers
    assert (leftover.exists(), context.store.ids()) == (False, [only])


def test_a_run_that_another_clean_removed_is_skipped(context: Context) -> None:
    first, second = ended(context, days=3), ended(context, days=2)
    Path(context.store.runs, "notes.txt").write_bytes(b"x" * 9000)
    planned = plan(context, CleanChoice(), quiet)
    context.store.remove(first)
    removed = remove(context, planned, quiet)
    assert [run.status.run_id for run in removed.runs] == [second]
    assert (len(removed.absent), removed.left_by) == (2, planned.frees)
    assert planned.holds - removed.left_by >= 9000
    assert plan(context, CleanChoice(), quiet).holds >= 9000
