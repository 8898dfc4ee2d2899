"""Renders a study: the table in the guide's format, the lines below it, and the JSON document."""

from __future__ import annotations

from typing import Any

from clusterrun.bench.result import ResultRow, Table
from clusterrun.bench.study_results import MachineInfo
from clusterrun.cli.bench_study import Study
from clusterrun.cli.terminal import table as print_table
from clusterrun.reports.view import (
    INTEGER,
    NUMBER,
    OBJECT,
    TEXT,
    View,
    ViewField,
    any_of,
    many,
    optional,
)

HEADS = (
    *("CONFIGURATION", "TIME", "SPEED-UP", "PREDICTED", "EFFICIENCY", "STEPS/S", "RATE", "SPREAD", "RUNS"),
    "ON",
)
FIGURES = (
    *("time", "rate", "steps_per_second", "samples_per_second", "speed_up", "predicted", "efficiency"),
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
    own = "cores that ranks share, nothing hidden" if shared else "2/3 of a step hides sending"
    return (
        f"predicted from a step of {table.step_seconds * 1e3:.4g} ms on one, "
        f"{table.parameters:,} gradients × 4 bytes, all-reduce at {links}; {own}"
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
    members = {
        "name": study.name,
        "file": study.path,
        "subject": study.runner.results.subject,
        "growth": study.subject.growth.value,
        "unit": table.unit,
        "steps": table.steps,
        "parameters": table.parameters or None,
        "baseline": table.baseline.name if table.baseline else None,
        "all_reduce": [
            {"ranks": g.ranks, "latency": g.latency, "bandwidth": g.bandwidth}
            for g in (probed.groups if probed else ())
        ],
        "rows": [_row(row, study, probed) for row in table.rows],
        "seconds": {"elapsed": elapsed, "runs": spent, "overhead": elapsed - spent},
    }
    return STUDY.document(members)


def _row(row: ResultRow, study: Study, probed: MachineInfo | None) -> dict[str, Any]:
    return {
        "configuration": row.cell.name,
        "strategy": row.cell.strategy or None,
        "world": row.cell.world,
        "runs": row.runs,
        **{name: getattr(row, name) or None for name in FIGURES},
        "spread": row.spread if row.runs > 1 else None,
        "notes": list(row.notes),
        "failed": row.failed or None,
        "environment": environment(row, study, probed),
    }


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
                ViewField("configuration", "Its name."),
                ViewField("strategy", "The strategy.", optional(TEXT)),
                ViewField("world", "Devices.", INTEGER),
                ViewField("runs", "Runs that counted.", INTEGER),
                ViewField("time", "Seconds for the baseline's work.", optional(NUMBER)),
                ViewField("rate", "Work per second.", optional(NUMBER)),
                ViewField("steps_per_second", "Steps per second.", optional(NUMBER)),
                ViewField("samples_per_second", "Samples per second.", optional(NUMBER)),
                ViewField("speed_up", "Against the baseline.", optional(NUMBER)),
                ViewField("predicted", "The speed-up to expect.", optional(NUMBER)),
                ViewField("efficiency", "Speed-up per device.", optional(NUMBER)),
                ViewField(
                    "spread", "Largest less smallest of the repeats, over their median.", optional(NUMBER)
                ),
                ViewField("notes", "Remarks.", many(TEXT, "A sentence.")),
                ViewField("failed", "Why there is no figure.", optional(TEXT)),
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
