"""The use of a run's time and resources is computed from recorded times and samples."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.cli.follow_run import end_report_lines as lines
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import State
from clusterrun.model.usage import GpuUse, NodeUse, RankUse, UsageMean
from clusterrun.monitor.sampling import Sums
from clusterrun.reports.efficiency import EndReport, MeasuredAttempt, ProgressMarks, account, asked_memory

SPEC = JobSpec(
    command=("train.py",),
    cwd="/",
    name="train",
    nodes=2,
    gpus=4,
    cpus_per_rank=8,
    mem="64G",
    time=86400,
    cluster=Cluster.SLURM,
)
RECORD = RunRecord("20270115-080000-0000-train", "train", "slurm", "t", SPEC, 0.0, "41")
WHOLE = UsageMean(900.0, 6.0, 50.0, 11.5, 6.5 * 2**30, 80.0, 0.5, 4, 2, 3.6e6)


def use(node: str = "n0", whole: UsageMean | None = WHOLE, at: float = 1100.0) -> NodeUse:
    return NodeUse(node, at, 10.0, 6.0, 32, 0, 256 << 30, 0.0, 0.0, (RankUse(0, 6.0, 1),), whole=whole)


def attempt(epoch: int, begin: float, ranks: float | None, end: float, job: str = "41") -> Attempt:
    return Attempt(epoch, "", ("n0", "n1"), begin, end, "FAILED", job_id=job, ranks_at=ranks)


def marks(
    first: int, first_at: float, step: int, at: float, saved: tuple[int, float] | None
) -> ProgressMarks:
    checkpoint, saved_at = saved or (None, None)
    return ProgressMarks(step, checkpoint, at, first, first_at, saved_at)


def report_of(*attempts: MeasuredAttempt, state: State = State.COMPLETED, **changes: Any) -> EndReport:
    record = replace(RECORD, spec=replace(SPEC, **changes))
    return account(record, state, attempts[-1].attempt.ended_at or 0.0, attempts)


FIRST = MeasuredAttempt(
    attempt(0, 100.0, 160.0, 600.0), 40.0, (use(), use("n1")), marks(0, 170.0, 430, 590.0, (400, 560.0))
)
LAST = (640.0, 900, 1110.0, None)
SECOND = MeasuredAttempt(
    attempt(1, 610.0, 620.0, 1120.0), 5.0, (use(), use("n1")), marks(401, 640.0, 900, 1110.0, (900, 1110.0))
)


def test_the_time_of_a_run_adds_up() -> None:
    report = report_of(FIRST, SECOND)
    assert (report.queue, report.allocated, report.check, report.between) == (100.0, 1020.0, 45.0, 10.0)
    assert (report.ranks, report.start) == (440.0 + 500.0, 1020.0 - 10.0 - 45.0 - 940.0)
    assert report.steps == 420.0 + 470.0
    assert report.counted == 390.0 + 470.0  # steps 401 to 430 were taken twice
    assert report.goodput == 860.0 / 1020.0


@pytest.mark.parametrize("job", [{"job_id": "42"}, {"job_restarts": 1}], ids=["other job", "requeued"])
def test_the_time_between_two_allocations_is_spent_in_the_queue(job: dict[str, Any]) -> None:
    second = replace(SECOND, attempt=replace(SECOND.attempt, **job))
    report = report_of(FIRST, second)
    assert (report.queue, report.between, report.allocated) == (110.0, 0.0, 1010.0)


@pytest.mark.parametrize(
    ("first", "second", "state", "counted"),
    [
        # No step was lost, for the script stopped to make room.
        (marks(0, 170.0, 400, 590.0, None), marks(400, *LAST), State.COMPLETED, 890.0),
        # It began from the beginning.
        (marks(0, 170.0, 400, 590.0, None), marks(1, *LAST), State.COMPLETED, 470.0),
        # The step from which it continued is unknown.
        (marks(0, 170.0, 400, 590.0, None), marks(300, *LAST), State.COMPLETED, None),
        # An older checkpoint than the newest was loaded: when that was saved is not known any more.
        (marks(0, 170.0, 400, 590.0, (390, 580.0)), marks(301, *LAST), State.COMPLETED, None),
        # Only saved steps of a failed run count.
        (
            marks(0, 170.0, 400, 590.0, (400, 590.0)),
            marks(400, 640.0, 900, 1110.0, (800, 1010.0)),
            State.FAILED,
            790.0,
        ),
        (marks(0, 170.0, 400, 590.0, (400, 590.0)), marks(400, *LAST), State.FAILED, None),
        # A step without a time, or an impossible time, gives no figure.
        (ProgressMarks(step=400, at=590.0), marks(400, *LAST), State.COMPLETED, None),
        (marks(0, 1.0, 400, 590.0, None), marks(400, *LAST), State.COMPLETED, None),
        (marks(0, float("nan"), 400, 590.0, None), marks(400, *LAST), State.COMPLETED, None),
        # An attempt that took no step has none to count.
        (None, marks(1, *LAST), State.COMPLETED, 470.0),
        (None, None, State.COMPLETED, None),
    ],
)
def test_only_steps_that_nobody_had_to_repeat_count(
    first: ProgressMarks | None, second: ProgressMarks | None, state: State, counted: float | None
) -> None:
    report = report_of(replace(FIRST, marks=first), replace(SECOND, marks=second), state=state)
    assert report.counted == counted
    assert (report.goodput is None) is (counted is None)


def test_use_is_that_of_all_nodes_and_attempts() -> None:
    quiet = replace(WHOLE, seconds=100.0, cores=1.0, busy=0.0, most_cores=2.0, joules=-1.0)
    report = report_of(replace(FIRST, uses=(use(whole=quiet), use("n1", whole=None))), SECOND)
    assert report.cores_mean == pytest.approx((100.0 + 2 * 5400.0) / 1900.0)
    assert (report.cores_most, report.cores_asked) == (11.5, 32)
    assert (report.memory_most, report.memory_asked) == (6.5 * 2**30, 64 << 30)
    assert (report.gpus, report.gpus_idle) == (8, 4)
    assert (report.gpu_busy_most, report.gpu_memory_most, report.gpu_joules) == (0.8, 0.5, 7.2e6)


def test_sufficient_options_are_shown_for_runs_that_ended_well() -> None:
    assert report_of(FIRST, SECOND).smaller == ("--cpus-per-rank 3", "--mem 9G", "--time 22m")
    idle = (use(whole=replace(WHOLE, idle=4)),)
    without = report_of(replace(FIRST, uses=idle), replace(SECOND, uses=idle))
    assert "--gpus 0 --ranks-per-node 4" in without.smaller
    assert report_of(FIRST, SECOND, state=State.FAILED).smaller == ()
    assert report_of(FIRST, SECOND, cpus_per_rank=3, mem="10G", time=1500, gpus=0).smaller == ()
    short = replace(SECOND, attempt=attempt(0, 1100.0, 1100.0, 1120.0), marks=None)
    assert report_of(short).smaller == ()


def test_unmeasured_values_are_not_shown() -> None:
    report = report_of(MeasuredAttempt(attempt(0, 100.0, None, 600.0)))
    message = dict(lines(report))
    assert message == {"time": "queue 1 min 40 s, allocated 8 min 20 s on 2 nodes", "goodput": "not measured"}
    assert {report.start, report.ranks, report.cores_mean, report.memory_most, report.gpus} == {None}


def test_an_attempt_without_an_end_ends_at_its_last_observation() -> None:
    lost = replace(FIRST, attempt=replace(FIRST.attempt, ended_at=None), uses=(use(at=580.0),))
    assert report_of(lost, SECOND).between == 30.0


def test_simulated_nodes_of_one_machine_have_the_same_gpus() -> None:
    report = report_of(FIRST, cluster=Cluster.LOCAL)
    assert (report.gpus, report.gpus_idle, report.gpu_joules) == (4, 2, 3.6e6)


@pytest.mark.parametrize(
    ("text", "count"), [("64G", 64 << 30), ("1000", 1000 << 20), ("0", None), ("", None), ("x", None)]
)
def test_memory_is_written_in_units_of_slurm(text: str, count: int | None) -> None:
    assert asked_memory(text) == count


def test_a_node_sums_up_means_and_peaks_as_it_samples() -> None:
    sums = Sums()
    sample = replace(use(whole=None), ranks=(RankUse(0, 1.0, 100), RankUse(1, 2.0, 50)))
    first = replace(sample, gpus=(GpuUse(0, 0.0, 10, 80, 100.0, 40), GpuUse(1, 50.0, 40, 80, 300.0, 40)))
    second = replace(sample, ranks=(RankUse(0, 3.0, 20),), gpus=(GpuUse(0, 0.0, 20, 80, -1.0, 40),))
    sums.with_whole(first)
    assert sums.with_whole(second).whole == UsageMean(
        seconds=20.0,
        cores=3.0,
        busy=12.5,
        most_cores=3.0,
        most_memory=150,
        most_busy=25.0,
        most_gpu_memory=0.5,
        gpus=2,
        idle=1,
        joules=4000,
    )
    assert Sums().with_whole(replace(sample, ranks=())).whole == UsageMean(10.0, 0.0, -1.0)
