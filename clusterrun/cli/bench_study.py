"""Build a scaling study from the options and this machine, measure it, and render its results."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from typing import Any

from clusterrun.bench import study_results
from clusterrun.bench.result import ResultRow, Table, build_table
from clusterrun.bench.runner import Runner
from clusterrun.bench.shape import THREADS, names_strategy, spec_of
from clusterrun.bench.sizes import count
from clusterrun.bench.study import (
    AS_IS,
    Cell,
    Growth,
    StudySubject,
    cells,
    read_strategies,
    read_worlds,
    worlds_up_to,
)
from clusterrun.bench.study_results import MachineInfo, StudyResults
from clusterrun.cli.error_output import say
from clusterrun.cli.terminal import table as print_table
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import fields, frozen, replace
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context, Tell
from clusterrun.reports.view import INTEGER, NUMBER, OBJECT, TEXT, View, ViewField, any_of, many, optional
from clusterrun.runs.store import file_name
from clusterrun.shipped import folder

# World sizes if the size of a node is not known.
ON_SLURM = (1, 2, 4, 8)


@frozen
class LocalMachine:
    """The size of this machine. All sizes are 0 if the study runs on Slurm's nodes."""

    local: bool  # the study runs on this machine
    cores: int
    gpus: int


class Study:
    def __init__(
        self,
        context: Context,
        machine: LocalMachine,
        subject: StudySubject,
        cells: tuple[Cell, ...],
        options: dict[str, Any],
    ) -> None:
        command = subject.spec.command
        program = command[1] if command[0] == "-m" and len(command) > 1 else command[0]
        script_name = os.path.basename(program).removesuffix(".py") or sys.argv[0]
        self.subject = subject
        self.cells = cells
        self.machine = machine
        self.name = options["study"] or f"{file_name(script_name)}-{subject.digest}"
        self.path = study_results.path_of(context.store.home, file_name(self.name))
        self.repeats: int = options["repeats"]
        self.parameters = round(count(options["parameters"], "--parameters")) if options["parameters"] else 0
        self._probes = not options["no_probe"]
        fresh = StudyResults(shlex.join(subject.spec.command), subject.digest, subject.growth.value)
        results = fresh if options["fresh"] else study_results.open_results(self.path, fresh)
        self.runner = Runner(subject, self.path, results, context, say)

    def remaining(self) -> list[tuple[Cell, int]]:
        return self.runner.left(self.cells, self.repeats)

    def crowded(self) -> str:
        """Return why the largest world is too large for this machine, '' if it is not or runs elsewhere."""
        threads = max(1, self.subject.spec.cpus_per_rank)
        most = max(cell.world for cell in self.cells)
        if not self.machine.local or self.subject.spec.gpus or most * threads <= self.machine.cores:
            return ""
        need = f"{most} ranks × {threads} cores" if threads > 1 else f"{most} ranks"
        return f"{need} are more than the {self.machine.cores} cores of this machine, which they would share"

    def measure(self, report: Tell) -> None:
        if not self.remaining():
            report(f"everything was measured before: {self.path} (--fresh measures anew)")
            return
        self.runner.check(self.cells, self.repeats)
        if self._probes:
            # A short all-reduce job for the largest possible world.
            script = os.path.join(folder("jobs"), "allreduce.py")
            worlds = sorted({cell.world for cell in self.cells if not self._planned(cell)[1]})
            groups = ",".join(str(world) for world in worlds if world > 1) or "1"
            command = (script, "--groups", groups)
            plain = replace(self.subject, spec=replace(self.subject.spec, command=command), reference=False)
            probe = replace(spec_of(plain, Cell(AS_IS, worlds[-1])), name="all-reduce")
            self.runner.probe(probe, tuple(cell.world for cell in self.cells if not cell.one_process))
        self.runner.measure(self.cells, self.repeats)

    def table(self) -> Table:
        spec = self.subject.spec
        devices, threads = spec.gpus or spec.ranks_per_node, max(1, spec.cpus_per_rank)
        return build_table(self.runner.results, self.cells, devices, threads, self.parameters)

    def print_plan(self, as_json: bool) -> int:
        crowded = self.crowded()
        if crowded:
            say(f"notice: {crowded}")
        say(f"would measure {len(self.remaining())} runs and keep them in {self.path}")
        planned = [(cell, *self._planned(cell)) for cell in self.cells]
        if as_json:
            rows = []
            for cell, command, refusal in planned:
                rows.append({"configuration": cell.name, "command": command, "refused": refusal})
            print(json.dumps(rows))
            return ExitCode.DONE
        for cell, command, refusal in planned:
            text = f"refused: {refusal}" if refusal else shlex.join(command)
            print(f"{cell.name}: {text}")
        return ExitCode.DONE

    def _planned(self, cell: Cell) -> tuple[tuple[str, ...], str]:
        try:
            return spec_of(self.subject, cell).command, ""
        except BadInput as error:
            return (), error.seen


def prepared(
    context: Context,
    spec: JobSpec,
    script: str | None,
    command_line: tuple[str, ...],
    options: dict[str, Any],
) -> Study:
    from clusterrun.local.gpus import count_gpus

    # ``--script`` with its arguments, else a command as in submit, else the shipped train.py.
    shipped = os.path.join(folder("jobs"), "train.py")
    is_command = command_line and (command_line[0] == "-m" or not command_line[0].startswith("-"))
    command = command_line if is_command and not script else (script or shipped, *command_line)
    is_shipped = _content(command[0], spec.cwd) == _content(shipped, spec.cwd)
    reference = command[0].endswith("train.py") and is_shipped
    if spec.cluster is not Cluster.LOCAL and not context.client().why_not():
        machine = LocalMachine(False, 0, 0)
    else:
        machine = LocalMachine(True, len(os.sched_getaffinity(0)), count_gpus(context.environ))
    spec = _placed(replace(spec, command=command), machine, context)
    content, gpus = _content(command[0], spec.cwd), machine.gpus if machine.local else -1
    subject = StudySubject(spec, Growth(options["growth"]), reference, content, gpus)
    text = options["strategies"]
    strategies: tuple[str, ...]
    if text is None:
        strategies = ("single", "dp", "ddp") if subject.reference else (AS_IS,)
    else:
        strategies = read_strategies(text, subject.reference)
        if not subject.reference and not names_strategy(subject.spec):
            message = f"--strategies {text}: the script is not told which one it runs"
            raise BadInput(message, "put {strategy} among its arguments, or in an --env NAME={strategy}")
    devices = spec.gpus or spec.ranks_per_node
    if options["worlds"]:
        worlds = read_worlds(options["worlds"])
    elif devices or machine.local:
        worlds = worlds_up_to(devices or machine.cores)
    else:
        worlds = ON_SLURM
    return Study(context, machine, subject, cells(strategies, worlds, spec.gpus), options)


def _content(first: str, cwd: str) -> str:
    try:
        with open(os.path.join(cwd, first), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""  # a module, a program on PATH, or an error that submitting reports


def _placed(spec: JobSpec, machine: LocalMachine, context: Context) -> JobSpec:
    """Return ``spec`` with this machine's devices by default, and equal threads for every CPU rank."""
    if machine.local:
        spec = replace(spec, cluster=Cluster.LOCAL)
    if machine.local and machine.gpus and not spec.gpus and not spec.ranks_per_node:
        counted = "1 GPU: it is" if machine.gpus == 1 else f"{machine.gpus} GPUs: they are"
        say(f"this machine has {counted} measured")
        return replace(spec, gpus=machine.gpus)
    variables = {*context.environ, *(name for name, _ in spec.environment)}
    if spec.gpus or THREADS in variables:
        return spec
    # A single rank would use all cores and each of several ranks one, so they could not be compared.
    return replace(spec, environment=(*spec.environment, (THREADS, str(max(1, spec.cpus_per_rank)))))


HEADS = (
    *("CONFIGURATION", "TIME", "SPEED-UP", "PREDICTED", "EFFICIENCY", "STEPS/S", "RATE", "SPREAD", "RUNS"),
    "ON",
)
NOISY_SPREAD = 0.25
NOISY = (
    "repeats differ by up to {:.0%}: something else kept the machine busy, and smaller differences "
    "between rows mean nothing; a larger --repeats adds runs to these"
)
SPARE = ("RUNS", "RATE", "SPREAD", "STEPS/S", "EFFICIENCY", "PREDICTED")


def show(study: Study, table: Table) -> None:
    print_table(HEADS, [_cells(row, study, table) for row in table.rows], SPARE)
    print("\n" + "\n".join(legend(study, table)))


def _cells(row: ResultRow, study: Study, table: Table) -> list[str]:
    if not row.rate:
        reason = failure(row) if row.failed else "; ".join(row.notes)
        return [row.cell.name, *["–"] * (len(HEADS) - 3), "0", reason]
    return [
        row.cell.name,
        f"{row.time:.2f} s",
        f"{row.speed_up:.2f}×",
        f"{row.predicted:.2f}×" if row.predicted else "–",
        f"{row.efficiency:.0%}",
        f"{row.steps_per_second:.4g}" if row.steps_per_second else "–",
        f"{row.rate:.4g} {table.unit}",
        f"{row.spread:.0%}" if row.runs > 1 else "–",
        str(row.runs),
        "; ".join([where(row, study, table.probed), *row.notes, *([failure(row)] if row.failed else [])]),
    ]


def failure(row: ResultRow) -> str:
    return f"failed: {row.failed.removeprefix('FAILED: ')}"


def where(row: ResultRow, study: Study, probed: MachineInfo | None) -> str:
    laid, spec = row.laid, study.subject.spec
    kind = "GPU" if spec.gpus else "rank"
    nodes = "node" if laid.nodes == 1 else "nodes"
    devices = kind if laid.each == 1 else f"{kind}s"
    return f"{laid.nodes} {nodes} × {laid.each} {devices}{sharing(row, study, probed)}"


def sharing(row: ResultRow, study: Study, probed: MachineInfo | None) -> str:
    """Return the note on cores that CPU ranks share, '' for GPUs."""
    if study.subject.spec.gpus or (probed and probed.device not in ("", "cpu")):
        return ""
    cores = probed.cores if probed and probed.cores else study.machine.cores
    ranks = row.cell.world if study.machine.local else row.laid.each
    return f", {cores} cores shared" if cores and ranks > 1 else f", 1 of {cores} cores" if cores else ""


def legend(study: Study, table: Table) -> list[str]:
    if table.baseline is None:
        return [f"nothing was measured of {study.runner.results.subject}"]
    worst = max(row.spread for row in table.rows)
    work = f"for the work of {table.steps} steps of {table.baseline.name}"
    if table.unit == "runs/s":
        work = "the whole run, start-up and all, for the script never said steps_per_second=…"
    return [
        f"{study.runner.results.subject} · {study.subject.growth.value} scaling · {machine(study, table)}",
        f"time: {work}; speed-up against {table.baseline.name}; "
        "spread: largest less smallest, over the median",
        prediction(table),
        *([NOISY.format(worst)] if worst > NOISY_SPREAD else []),
        f"measurements: {study.path}",
    ]


def machine(study: Study, table: Table) -> str:
    probed = table.probed
    place = "this machine" if study.machine.local else "Slurm"
    if probed is None or probed.failed:
        return f"{place}; device and torch version not asked"
    device = f"{probed.processor}, {probed.cores} cores" if probed.device == "cpu" else probed.device
    return f"{place}: {device}; torch {probed.torch}, {probed.backend}"


def prediction(table: Table) -> str:
    probed = table.probed
    if probed is None or probed.failed:
        return "predicted: not without the all-reduce that the short job measures"
    if not table.step_seconds:
        return "predicted: not without a measured pace of one rank (world 1)"
    if not table.parameters:
        return "predicted: not without the model's size: --parameters N, or parameters=N in the script's line"
    links = "; ".join(
        f"{group.bandwidth / 1e9:.3g} GB/s and {group.latency * 1e3:.3g} ms between {group.ranks} ranks"
        for group in probed.groups
    )
    shared = probed.device == "cpu"
    assumption = "cores that ranks share, nothing hidden" if shared else "2/3 of a step hides sending"
    return (
        f"predicted from a step of {table.step_seconds * 1e3:.4g} ms on one, "
        f"{table.parameters:,} gradients × 4 bytes, all-reduce at {links}; {assumption}"
    )


def title(study: Study) -> str:
    return f"{study.runner.results.subject}: {study.subject.growth.value} scaling"


def caption(study: Study, table: Table) -> str:
    shared = "ranks share the cores · " if table.probed and table.probed.device == "cpu" else ""
    repeats = "one run each"
    if study.repeats > 1:
        repeats = f"{study.repeats} runs each, bars from the slowest to the fastest"
    return f"{machine(study, table)} · {shared}{repeats}"


def document(study: Study, table: Table) -> dict[str, Any]:
    """Return the JSON document of a study. Units are seconds, work per second and shares."""
    probed, elapsed, spent = table.probed, study.runner.elapsed, study.runner.spent
    rows = [{**fields(row), "environment": environment(row, study, probed)} for row in table.rows]
    members = {
        "name": study.name,
        "file": study.path,
        "subject": study.runner.results.subject,
        "growth": study.subject.growth.value,
        "unit": table.unit,
        "steps": table.steps,
        "parameters": table.parameters or None,
        "baseline": table.baseline.name if table.baseline else None,
        "all_reduce": probed.groups if probed else (),
        "rows": rows,
        "seconds": {"elapsed": elapsed, "runs": spent, "overhead": elapsed - spent},
    }
    return STUDY.document(members)


def environment(row: ResultRow, study: Study, probed: MachineInfo | None) -> dict[str, Any]:
    info = probed if probed and not probed.failed else MachineInfo()
    return {
        "cluster": "local" if study.machine.local else "slurm",
        "nodes": row.laid.nodes,
        "devices_per_node": row.laid.each,
        "device": info.device or None,
        "processor": info.processor or None,
        "cores": info.cores or study.machine.cores or None,
        "cores_shared": bool(sharing(row, study, probed)) and row.cell.world > 1,
        "torch": info.torch or None,
        "backend": info.backend or None,
    }


# A number of 0 was not measured.
FIGURE, NAME = (optional(kind, lambda value: not value) for kind in (NUMBER, TEXT))
STUDY = View(
    "What `bench scaling --json` prints: seconds, work per second, shares.",
    ViewField("name", "The study."),
    ViewField("file", "Where it is kept."),
    ViewField("subject", "The measured command.", TEXT),
    ViewField("growth", "`strong` or `weak`."),
    ViewField("unit", "The unit of rates."),
    ViewField("steps", "Steps that counted.", any_of("integer", "number", "null")),
    ViewField("parameters", "Size of the model.", optional(NUMBER)),
    ViewField("baseline", "The first configuration.", optional(TEXT)),
    ViewField(
        "all_reduce",
        "The measurements of the all-reduce job.",
        many(
            View(
                "An all-reduce.",
                ViewField("ranks", "Ranks.", INTEGER),
                ViewField("latency", "Seconds.", NUMBER),
                ViewField("bandwidth", "Bytes per second.", NUMBER),
            )
        ),
    ),
    ViewField(
        "rows",
        "One for each configuration.",
        many(
            View(
                "A configuration.",
                ViewField("configuration", "Its name.", TEXT, lambda row: row["cell"].name),
                ViewField("strategy", "The strategy.", NAME, lambda row: row["cell"].strategy),
                ViewField("world", "Devices.", INTEGER, lambda row: row["cell"].world),
                ViewField("runs", "Runs that counted.", INTEGER),
                ViewField("time", "Seconds for the baseline's work.", FIGURE),
                ViewField("rate", "Work per second.", FIGURE),
                ViewField("steps_per_second", "Steps per second.", FIGURE),
                ViewField("samples_per_second", "Samples per second.", FIGURE),
                ViewField("speed_up", "Against the baseline.", FIGURE),
                ViewField("predicted", "The speed-up to expect.", FIGURE),
                ViewField("efficiency", "Speed-up per device.", FIGURE),
                ViewField(
                    "spread",
                    "Largest less smallest of the repeats, over their median.",
                    optional(NUMBER),
                    lambda row: row["spread"] if row["runs"] > 1 else None,
                ),
                ViewField("notes", "Remarks.", many(TEXT, "A sentence.")),
                ViewField("failed", "Why there is no figure.", NAME),
                ViewField(
                    "environment",
                    "The machine that was measured; null for values that are not known.",
                    OBJECT,
                ),
            )
        ),
    ),
    ViewField(
        "seconds",
        "The use of time.",
        View(
            "The use of time.",
            ViewField("elapsed", "In all.", NUMBER),
            ViewField("runs", "In runs.", NUMBER),
            ViewField("overhead", "The rest.", NUMBER),
        ),
    ),
)
