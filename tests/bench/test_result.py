"""From measurements to the table: every number by hand."""

from __future__ import annotations

import pytest

from clusterrun.bench import rates
from clusterrun.bench.reading import SpeedLine
from clusterrun.bench.result import ResultRow, Table, build_table
from clusterrun.bench.runner import NO_RATE_REPORTED, in_turn
from clusterrun.bench.shape import Shape
from clusterrun.bench.study import Cell
from clusterrun.bench.study_results import AllReduceTiming, MachineInfo, MeasuredRun, StudyResults
from clusterrun.model.frozen import replace
from clusterrun.model.world import ring_share

SINGLE, TWO, FOUR = Cell("single", 1), Cell("ddp", 2), Cell("ddp", 4)


def runs(cell: Cell, *paces: float, **facts: float) -> list[MeasuredRun]:
    return [
        MeasuredRun(cell, n, f"run-{n}", seconds=pace * 3, report=SpeedLine(pace, **facts))  # type: ignore[arg-type]
        for n, pace in enumerate(paces)
    ]


def table(
    *measurements: MeasuredRun, growth: str = "strong", probed: MachineInfo | None = None, **options: int
) -> Table:
    cells = tuple(dict.fromkeys(run.cell for run in measurements))
    return build_table(StudyResults("x", "d", growth, measurements, probed), cells, 0, **options)


def test_the_table_of_the_guide_follows_from_its_times() -> None:
    result = table(*runs(SINGLE, 1.0, steps=100), *runs(TWO, 100 / 55), *runs(FOUR, 100 / 30))
    output = [(row.cell.name, round(row.time, 1), round(row.speed_up, 1)) for row in result.rows]
    assert output == [("single", 100.0, 1.0), ("ddp × 2", 55.0, 1.8), ("ddp × 4", 30.0, 3.3)]
    assert [round(row.efficiency, 2) for row in result.rows] == [1.0, 0.91, 0.83]


def test_the_median_counts_and_the_spread_is_shown() -> None:
    (row,) = table(*runs(SINGLE, 9.0, 10.0, 12.0)).rows
    assert row == ResultRow(SINGLE, Shape(1, 1), 3, 10.0, 10.0, 0.0, 10.0, 1.0, 1.0, 0.3, 0.0, 0.9, 1.2)


def test_samples_are_compared_where_all_tell_them_else_steps() -> None:
    message = table(
        *runs(SINGLE, 10.0, samples_per_second=640.0), *runs(TWO, 10.0, samples_per_second=1280.0)
    )
    assert (message.unit, message.rows[1].speed_up) == ("samples/s", 2.0)
    mixed = table(*runs(SINGLE, 10.0, samples_per_second=640.0), *runs(TWO, 15.0))
    assert (mixed.unit, mixed.rows[1].speed_up) == ("steps/s", 1.5)


def test_a_weak_worlds_steps_are_as_many_times_larger() -> None:
    (_, row) = table(*runs(SINGLE, 10.0), *runs(TWO, 9.0), growth="weak").rows
    assert (row.rate, row.speed_up, row.efficiency) == (18.0, 1.8, 0.9)


def test_a_script_without_reports_is_timed_as_a_whole() -> None:
    result = table(MeasuredRun(SINGLE, 0, "a", seconds=10.0), MeasuredRun(TWO, 0, "b", seconds=8.0))
    assert (result.unit, [row.time for row in result.rows]) == ("runs/s", [10.0, 8.0])
    assert result.rows[1].speed_up == 1.25


def test_a_cell_that_alone_never_reports_has_failed() -> None:
    (_, row) = table(*runs(SINGLE, 10.0), MeasuredRun(TWO, 0, "b", seconds=8.0)).rows
    assert row == ResultRow(TWO, Shape(1, 2), 0, failed=NO_RATE_REPORTED)


def test_a_failed_configuration_is_a_row_and_the_next_good_row_is_the_baseline() -> None:
    result = table(MeasuredRun(SINGLE, 0, "a", failed="FAILED: no"), *runs(TWO, 10.0), *runs(FOUR, 15.0))
    assert (result.rows[0].failed, result.baseline) == ("FAILED: no", TWO)
    assert (result.rows[2].speed_up, result.rows[2].efficiency) == (1.5, 0.75)


def test_configurations_without_finished_runs_are_not_measured() -> None:
    (row,) = table(MeasuredRun(SINGLE, 0, "a")).rows
    assert row == ResultRow(SINGLE, Shape(1, 1), 0, notes=("not measured yet",))


def test_a_strategy_that_replaced_the_requested_strategy_is_reported() -> None:
    cell = Cell("dp", 1)
    run = MeasuredRun(cell, 0, "a", 3.0, report=SpeedLine(1.0, ran_as="single"), notices=("needs 2 GPUs",))
    (row,) = table(run).rows
    assert row.notes == ("needs 2 GPUs", "ran as single")


GPUS = MachineInfo(
    device="NVIDIA H200",
    cluster="slurm",
    groups=(AllReduceTiming(2, 0.001, 1e9), AllReduceTiming(4, 0.001, 1e9)),
)
CORES = replace(GPUS, device="cpu", cluster="local", cores=2)


def test_the_backward_pass_hides_communication_on_gpus() -> None:
    """1e6 gradients × 4 B at 1 GB/s: 4 + 1 ms, behind 2/3 of 50 ms."""
    result = table(*runs(SINGLE, 10.0), *runs(TWO, 18.0), probed=GPUS, parameters=10**6)
    assert result.rows[1].predicted == pytest.approx(2.0)


def test_unhidden_communication_is_added() -> None:
    """1e8 × 4 B = 400 MB over 2 ranks at 1 GB/s: 400 ms and 16 buckets × 1 ms; 2/3 of 50 ms hide."""
    result = table(*runs(SINGLE, 10.0), *runs(TWO, 18.0), probed=GPUS, parameters=10**8)
    assert result.rows[1].predicted == pytest.approx(0.1 / (0.05 + 0.416 - 0.05 * 2 / 3))


def test_cpu_ranks_share_cores_and_hide_nothing() -> None:
    """Four ranks on two cores: half of 100 ms, and 1.5 × 4 MB at 1 GB/s with 1 ms."""
    result = table(*runs(SINGLE, 10.0), *runs(TWO, 18.0), *runs(FOUR, 17.0), probed=CORES, parameters=10**6)
    assert [row.predicted for row in result.rows] == pytest.approx([1.0, 0.1 / 0.055, 0.1 / 0.057])


def test_weak_scaling_is_predicted_in_work_not_in_steps() -> None:
    result = table(*runs(SINGLE, 10.0), *runs(TWO, 9.0), growth="weak", probed=CORES, parameters=10**6)
    assert result.rows[1].predicted == pytest.approx(0.2 / 0.105)


@pytest.mark.parametrize(
    ("probed", "parameters"), [(None, 10**6), (MachineInfo(failed="no torch"), 10**6), (CORES, 0)]
)
def test_no_prediction_without_its_inputs(probed, parameters) -> None:
    result = table(*runs(SINGLE, 10.0), *runs(TWO, 18.0), probed=probed, parameters=parameters)
    assert result.rows[1].predicted == 0.0


def test_a_ring_sends_all_but_its_own_part_twice() -> None:
    assert [ring_share(n) for n in (1, 2, 4)] == [0.0, 1.0, 1.5]
    assert rates.all_reduce(1e9, 1, 1e9) == 0.0
    assert rates.sharded(1e9, 1e9, 4, 1e9, 0.0) == pytest.approx(1.5 * rates.all_reduce(1e9, 4, 1e9))


def test_rounds_begin_with_another_cell_each() -> None:
    a, b = Cell("", 1), Cell("", 2)
    assert list(in_turn((a, b), 3)) == [(a, 0), (b, 0), (b, 1), (a, 1), (a, 2), (b, 2)]
