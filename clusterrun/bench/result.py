"""From measurements to rows: medians, speed-up, efficiency, spread and the prediction; pure."""

from __future__ import annotations

import statistics

from clusterrun.bench import rates
from clusterrun.bench.runner import NO_RATE_REPORTED
from clusterrun.bench.shape import Shape, shape
from clusterrun.bench.study import Cell, Growth
from clusterrun.bench.study_results import MachineInfo, MeasuredRun, StudyResults
from clusterrun.model.frozen import frozen, replace

# The TIME column is for this number of steps if the script does not report its steps.
DEFAULT_STEPS = 100
# Bytes per parameter. Gradients travel as 32-bit numbers unless the script changes that.
GRADIENT_BYTES = 4


@frozen
class ResultRow:
    """One configuration as the table shows it. The numbers are 0 if it ``failed``."""

    cell: Cell
    laid: Shape
    runs: int
    rate: float = 0.0  # work per second, in the table's unit
    steps_per_second: float = 0.0  # 0 if only the wall time is known
    samples_per_second: float = 0.0
    time: float = 0.0  # seconds for the work of the baseline
    speed_up: float = 0.0  # against the baseline
    efficiency: float = 0.0  # the speed-up's share of the number of devices
    spread: float = 0.0  # (largest - smallest) / median of the runs
    predicted: float = 0.0  # a speed-up; 0 without a prediction
    slowest: float = 0.0  # rate of the slowest run
    fastest: float = 0.0
    notes: tuple[str, ...] = ()
    failed: str = ""


@frozen
class Table:
    """All rows, the ``unit`` of their rates, the work that ``time`` is for, and the predictions' inputs."""

    rows: tuple[ResultRow, ...]
    baseline: Cell | None
    unit: str
    steps: int
    parameters: int
    step_seconds: float
    probed: MachineInfo | None


@frozen
class CellRates:
    """The rates of the runs of one cell, before the comparison with a baseline."""

    cell: Cell
    rates: tuple[float, ...]
    steps: float
    samples: float
    failed: str
    notes: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Return the median."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def spread(self) -> float:
        """Largest less smallest, over the median."""
        return (max(self.rates) - min(self.rates)) / self.rate if self.rates else 0.0


def build_table(
    results: StudyResults, cells: tuple[Cell, ...], per_node: int, threads: int = 1, parameters: int = 0
) -> Table:
    """Return the table of ``cells``. ``per_node``: devices on each node (0: all on one)."""
    growth = Growth(results.growth)
    runs = {cell: [run for run in results.runs if run.cell == cell and not run.under_way] for cell in cells}
    reports = [run.report for runs_of_cell in runs.values() for run in runs_of_cell if run.report]
    good = [run for runs_of_cell in runs.values() for run in runs_of_cell if run.report and not run.failed]
    # All runs that reported can be compared in this unit of work.
    unit = "runs/s"
    if good:
        counts_samples = all(run.report and run.report.samples_per_second for run in good)
        unit = "samples/s" if counts_samples else "steps/s"
    paced = [_paced(cell, runs[cell], unit, growth) for cell in cells]
    base = next((cell_rates for cell_rates in paced if cell_rates.rates), None)
    size = parameters or max((report.parameters for report in reports), default=0)
    prediction = Prediction(results.probed, growth, base, size, per_node, threads)
    table_rows = []
    for cell_rates in paced:
        laid = shape_of(cell_rates.cell, per_node)
        if not cell_rates.rates or base is None:
            row = ResultRow(cell_rates.cell, laid, 0, notes=cell_rates.notes, failed=cell_rates.failed)
            table_rows.append(row)
            continue
        speed_up = cell_rates.rate / base.rate
        table_rows.append(
            ResultRow(
                cell=cell_rates.cell,
                laid=laid,
                runs=len(cell_rates.rates),
                rate=cell_rates.rate,
                steps_per_second=cell_rates.steps,
                samples_per_second=cell_rates.samples,
                speed_up=speed_up,
                efficiency=speed_up * base.cell.world / cell_rates.cell.world,
                spread=cell_rates.spread,
                predicted=prediction.speed_up(cell_rates.cell),
                slowest=min(cell_rates.rates) / base.rate,
                fastest=max(cell_rates.rates) / base.rate,
                notes=cell_rates.notes,
                failed=cell_rates.failed,
            )
        )
    rows = tuple(table_rows)
    steps = max((report.steps for report in reports), default=0) or DEFAULT_STEPS
    if base is None:
        return Table(rows, None, unit, steps, size, 0.0, results.probed)
    work = 1.0 if unit == "runs/s" else base.rate * steps / base.steps
    timed = tuple(replace(row, time=work / row.rate) if row.rate else row for row in rows)
    return Table(timed, base.cell, unit, steps, size, prediction.step, results.probed)


def _paced(cell: Cell, runs: list[MeasuredRun], unit: str, growth: Growth) -> CellRates:
    good = [run for run in runs if not run.failed and (run.report or unit == "runs/s")]
    silent = [run for run in runs if not run.failed and not run.report and unit != "runs/s"]
    failed = next((run.failed for run in runs if run.failed), "") or (NO_RATE_REPORTED if silent else "")
    reports = [run.report for run in good if run.report]
    ran_as = {report.ran_as for report in reports if report.ran_as and report.ran_as != cell.strategy}
    notes = tuple(dict.fromkeys(text for run in runs for text in run.notices))
    # ddp-spawn is ddp, started otherwise: no news.
    notes += tuple(f"ran as {name}" for name in sorted(ran_as) if cell.strategy not in ("", "ddp-spawn"))
    return CellRates(
        cell,
        tuple(_rate(run, unit, growth) for run in good),
        statistics.median([report.steps_per_second for report in reports]) if reports else 0.0,
        statistics.median([report.samples_per_second for report in reports]) if reports else 0.0,
        failed,
        notes or (() if runs else ("not measured yet",)),
    )


def _rate(run: MeasuredRun, unit: str, growth: Growth) -> float:
    """Return the work per second: samples if the script reports them, else steps.

    In a study of weak scaling a step grows with the world.
    """
    grown = run.cell.world if growth is Growth.WEAK else 1
    if unit == "runs/s" or run.report is None:
        return grown / run.seconds
    return run.report.samples_per_second if unit == "samples/s" else run.report.steps_per_second * grown


def shape_of(cell: Cell, per_node: int) -> Shape:
    """Nodes and devices of a cell; one that no nodes can hold is shown as one node."""
    whole = not per_node or cell.world <= per_node or not cell.world % per_node
    return shape(cell.world, per_node if whole else 0)


class Prediction:
    """Predicts each configuration from the step of one device and the measured all-reduce."""

    def __init__(
        self,
        probed: MachineInfo | None,
        growth: Growth,
        base: CellRates | None,
        parameters: int,
        per_node: int,
        threads: int,
    ) -> None:
        self._probed = probed if probed and not probed.failed else None
        self._weak = growth is Growth.WEAK
        self._bytes = parameters * GRADIENT_BYTES
        self._per_node = per_node
        self._threads = threads
        one_device = base is not None and base.cell.world == 1 and base.steps > 0
        self.step = 1 / base.steps if base and one_device else 0.0

    def speed_up(self, cell: Cell) -> float:
        """Predicted speed-up over one device; 0 if something needed for it is not known."""
        seconds = self.seconds(cell)
        return self.step * (cell.world if self._weak else 1) / seconds if seconds else 0.0

    def seconds(self, cell: Cell) -> float:
        """Predicted seconds of a step; 0 if something needed for it is not known."""
        if not self.step or self._probed is None:
            return 0.0
        if cell.world == 1:
            return self.step
        measured = self._probed.reduced(cell.world)
        if measured is None or not self._bytes:
            return 0.0
        computing = self.step * (cell.world if self._weak else 1) / self.devices(cell)
        sending = self._sending(cell, measured.bandwidth, measured.latency)
        on_gpus = self._probed.device != "cpu"
        return computing + rates.exposed(sending, computing, on_gpus and cell.strategy != "dp")

    def _sending(self, cell: Cell, bandwidth: float, latency: float) -> float:
        if cell.strategy == "dp":
            # One GPU sends its weights to all others, and takes back their gradients.
            return 2 * (cell.world - 1) * self._bytes / bandwidth
        if cell.strategy == "fsdp":
            return rates.sharded(self._bytes, self._bytes, cell.world, bandwidth, latency)
        return rates.all_reduce(self._bytes, cell.world, bandwidth, latency)

    def devices(self, cell: Cell) -> float:
        """Devices that really compute at once: CPU ranks share the cores that there are."""
        if self._probed is None or self._probed.device != "cpu":
            return cell.world
        one_machine = self._probed.cluster == "local"
        nodes = 1 if one_machine else shape_of(cell, self._per_node).nodes
        return min(cell.world, max(1.0, nodes * self._probed.cores / self._threads))
