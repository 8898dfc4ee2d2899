"""`clusterrun bench advise`: suggests a strategy for a model and machines, with the expected scaling."""

from __future__ import annotations

import os
from typing import Any

import click

from clusterrun.cli.shell_complete import json_option
from clusterrun.cli.terminal import table
from clusterrun.model.document import encode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import fields
from clusterrun.reports.view import BOOLEAN, INTEGER, NUMBER, TEXT, Kind, View, ViewField, many

ADVICE = View(
    "The output of `bench advise --json`.",
    ViewField(
        "question",
        "The question, with all numbers that were filled in.",
        Kind({"type": "object"}, encode),
        former="asked",
    ),
    ViewField("take", "The strategy to take; empty where nothing fits."),
    ViewField("because", "Why."),
    ViewField(
        "fits",
        "Every strategy.",
        many(
            View(
                "A strategy and the memory of one GPU.",
                ViewField("strategy", "The strategy."),
                ViewField("needs", "Bytes.", NUMBER),
                ViewField("fits", "Whether they fit.", BOOLEAN),
                ViewField("lines", "The arithmetic.", many(TEXT, "A line.")),
            )
        ),
    ),
    ViewField(
        "expected",
        "The scaling of those that fit.",
        many(
            View(
                "The expected scaling of a strategy.",
                ViewField("strategy", "The strategy."),
                ViewField("gpus", "GPUs.", INTEGER),
                ViewField("sending", "Seconds of sending in a step.", NUMBER),
                ViewField("step", "Seconds of a step.", NUMBER),
                ViewField("efficiency", "Speed-up per GPU.", NUMBER),
            )
        ),
    ),
    ViewField("lines", "The arithmetic of the time.", many(TEXT, "A line.")),
)


@click.command()
@click.option("--parameters", metavar="N", help="Parameters of the model: 7e9, 7B, 125M.")
@click.option("--gpu-memory", metavar="SIZE", default="80GB", show_default=True, help="Memory of one GPU.")
@click.option(
    "--gpus-per-node", metavar="G", type=int, default=8, show_default=True, help="GPUs of each node."
)
@click.option("--nodes", "-N", metavar="N", type=int, default=1, show_default=True, help="Nodes.")
@click.option(
    "--optimizer", type=click.Choice(("adam", "momentum", "sgd")), default="adam", show_default=True
)
@click.option("--precision", type=click.Choice(("fp32", "amp", "bf16")), default="amp", show_default=True)
@click.option("--activations", metavar="SIZE", help="Memory of the activations of one GPU's batch.")
@click.option("--bandwidth", metavar="GB/s", help="Bandwidth of each GPU while all GPUs send.")
@click.option("--step-time", metavar="SECONDS", help="Time of a step of one GPU.")
@click.option(
    "--from", "measured", metavar="NAME", help="Use the results of bench scaling: name or file of a study."
)
@json_option
def advise(as_json: bool, **options: Any) -> None:
    """Estimate whether single, ddp or fsdp fits a model, and how it scales, with the arithmetic.

    It counts weights, gradients and the optimizer's state. Activations depend on the model: measure
    them on one GPU and give them.

    \b
    Examples:
      clusterrun bench advise --parameters 350M --gpu-memory 24GB --gpus-per-node 4
      clusterrun bench advise --parameters 7B --nodes 16 --bandwidth 25 --step-time 0.9
      clusterrun bench advise --parameters 70e9 --precision bf16 --nodes 4 --json
    """
    from clusterrun.bench.advice import advise as answer

    question = _question(options)
    advice = answer(question)
    if as_json:
        print(ADVICE.json({"question": question, **fields(advice)}))
    else:
        print(f"take {advice.take}: {advice.because}" if advice.take else f"nothing fits: {advice.because}")
        hint = "" if question.activations else "; activations are not counted: --activations SIZE"
        print(f"\nmemory of one GPU of {question.world} ({question.precision}, {question.optimizer}{hint})")
        for fit in advice.fits:
            print("\n".join([f"  {fit.strategy}", *(f"    {line}" for line in fit.lines)]))
        print("\ntime\n" + "\n".join(f"  {line}" for line in advice.lines))
        if advice.expected:
            print("\nexpected, every GPU with the batch of one")
            rows = []
            for estimate in advice.expected:
                times = (f"{seconds * 1e3:.4g} ms" for seconds in (estimate.sending, estimate.step))
                speed_up = f"{estimate.efficiency * estimate.gpus:.2f}×"
                rows.append(
                    [estimate.strategy, str(estimate.gpus), *times, speed_up, f"{estimate.efficiency:.0%}"]
                )
            table(("STRATEGY", "GPUS", "SENDING", "STEP", "SPEED-UP", "EFFICIENCY"), rows)


def _question(options: dict[str, Any]) -> Any:
    from clusterrun.bench import sizes
    from clusterrun.bench.advice import AdviceQuestion

    figures = {}
    if options["measured"]:
        name = options["measured"]
        from clusterrun.bench import study_results
        from clusterrun.bench.result import build_table
        from clusterrun.config import settings

        path = name if os.path.exists(name) else study_results.path_of(settings.home(os.environ), name)
        study = study_results.read_results(path)
        if study is None:
            raise BadInput(
                f"--from {name}: there is no measurement {path}", "clusterrun bench scaling makes one"
            )
        cells = sorted({run.cell for run in study.runs}, key=lambda cell: cell.world)
        table = build_table(study, tuple(cells), 0)
        largest = (
            max(study.probed.groups, key=lambda group: group.ranks, default=None) if study.probed else None
        )
        values = {"parameters": float(table.parameters), "step_seconds": table.step_seconds}
        if largest:
            values |= {"bandwidth": largest.bandwidth, "latency": largest.latency}
        figures = {key: value for key, value in values.items() if value}
    if options["parameters"]:
        figures["parameters"] = sizes.count(options["parameters"], "--parameters")
    if options["bandwidth"]:
        figures |= {"bandwidth": sizes.size(options["bandwidth"].removesuffix("/s"), "--bandwidth")}
        figures["latency"] = 0.0
    if options["step_time"]:
        figures["step_seconds"] = sizes.count(options["step_time"].removesuffix("s"), "--step-time")
    if "parameters" not in figures:
        count = "python -c 'print(sum(p.numel() for p in model.parameters()))' counts them"
        raise BadInput("how many parameters does the model have?", f"--parameters 7e9; {count}")
    return AdviceQuestion(
        optimizer=options["optimizer"],
        precision=options["precision"],
        memory=sizes.size(options["gpu_memory"], "--gpu-memory"),
        gpus_per_node=options["gpus_per_node"],
        nodes=options["nodes"],
        activations=sizes.size(options["activations"], "--activations") if options["activations"] else 0.0,
        **figures,
    )
