"""`clusterrun bench advise`: from a model and machines to a strategy and what to expect."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from clusterrun.cli.terminal import table
from clusterrun.model.document import encode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import fields
from clusterrun.reports.view import BOOLEAN, INTEGER, NUMBER, TEXT, Kind, View, ViewField, many

ADVICE = View(
    "What `bench advise --json` prints.",
    ViewField(
        "asked", "The question, with all numbers that were filled in.", Kind({"type": "object"}, encode)
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
                "What to expect.",
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
@click.option("--bandwidth", metavar="GB/s", help="What each GPU can send while all do.")
@click.option("--step-time", metavar="SECONDS", help="A step of one GPU, with its own batch.")
@click.option(
    "--from", "measured", metavar="NAME", help="Use what bench scaling measured: a study's name or file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def advise(as_json: bool, **given: Any) -> None:
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

    question = _question(given)
    advice = answer(question)
    if as_json:
        print(json.dumps(ADVICE.document({"asked": question, **fields(advice)})))
    else:
        _show(question, advice)


def _question(given: dict[str, Any]) -> Any:
    from clusterrun.bench import sizes
    from clusterrun.bench.advice import AdviceQuestion

    figures = _measured(given["measured"]) if given["measured"] else {}
    if given["parameters"]:
        figures["parameters"] = sizes.count(given["parameters"], "--parameters")
    if given["bandwidth"]:
        figures |= {"bandwidth": sizes.speed(given["bandwidth"], "--bandwidth"), "latency": 0.0}
    if given["step_time"]:
        figures["step_seconds"] = sizes.count(given["step_time"].removesuffix("s"), "--step-time")
    if "parameters" not in figures:
        count = "python -c 'print(sum(p.numel() for p in model.parameters()))' counts them"
        raise BadInput("how many parameters does the model have?", f"--parameters 7e9; {count}")
    return AdviceQuestion(
        optimizer=given["optimizer"],
        precision=given["precision"],
        memory=sizes.size(given["gpu_memory"], "--gpu-memory"),
        gpus_per_node=given["gpus_per_node"],
        nodes=given["nodes"],
        activations=sizes.size(given["activations"], "--activations") if given["activations"] else 0.0,
        **figures,
    )


def _measured(name: str) -> dict[str, float]:
    from clusterrun.bench import study_results as book
    from clusterrun.bench.result import build_table
    from clusterrun.config import settings

    path = name if os.path.exists(name) else book.path_of(settings.home(os.environ), name)
    found = book.read(path)
    if found is None:
        raise BadInput(f"--from {name}: there is no measurement {path}", "clusterrun bench scaling makes one")
    cells = sorted({run.cell for run in found.runs}, key=lambda cell: cell.world)
    known = build_table(found, tuple(cells), 0)
    largest = max(found.probed.groups, key=lambda g: g.ranks, default=None) if found.probed else None
    values = {"parameters": float(known.parameters), "step_seconds": known.step_seconds}
    if largest:
        values |= {"bandwidth": largest.bandwidth, "latency": largest.latency}
    return {key: value for key, value in values.items() if value}


def _show(asked: Any, advice: Any) -> None:
    print(f"take {advice.take}: {advice.because}" if advice.take else f"nothing fits: {advice.because}")
    told = "" if asked.activations else "; activations are not counted: --activations SIZE"
    print(f"\nmemory of one GPU of {asked.world} ({asked.precision}, {asked.optimizer}{told})")
    for fit in advice.fits:
        print("\n".join([f"  {fit.strategy}", *(f"    {line}" for line in fit.lines)]))
    print("\ntime\n" + "\n".join(f"  {line}" for line in advice.lines))
    if advice.expected:
        print("\nexpected, every GPU with the batch of one")
        rows = [
            [one.strategy, str(one.gpus), f"{one.sending * 1e3:.4g} ms", f"{one.step * 1e3:.4g} ms",
             f"{one.efficiency * one.gpus:.2f}×", f"{one.efficiency:.0%}"]
            for one in advice.expected
        ]  # fmt: skip
        table(("STRATEGY", "GPUS", "SENDING", "STEP", "SPEED-UP", "EFFICIENCY"), rows)
