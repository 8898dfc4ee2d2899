"""`clusterrun plan`: prints when each size of a run is expected to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import files, json_option
from clusterrun.cli.submit import Submit
from clusterrun.cli.submit_options import options, profile_option, settled, to_spec
from clusterrun.cli.terminal import show
from clusterrun.model import option_table
from clusterrun.model.duration import clock_time, spoken
from clusterrun.reports.view import INTEGER, NUMBER, TIME, View, ViewField, many, optional

if TYPE_CHECKING:
    from clusterrun.operations.queue_forecast import SizeForecast, Waits


@click.command(cls=Submit, context_settings={"allow_interspersed_args": False})
@options(option_table.EVERY)
@profile_option
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def plan(command: tuple[str, ...], as_json: bool, profile: str | None, **submission: Any) -> None:
    """Show when a run of this size, and of smaller ones, is expected to start; nothing is queued.

    Options are those of submit. A forecast is made from the nodes that are free,
    the ends of the jobs that run and the starts that Slurm has planned; beside it stands how long your runs
    of about that size waited, and how far such forecasts were off.

    \b
    Examples:
      clusterrun plan --nodes 8 --gpus 8 --time 12h
    """
    from clusterrun.operations.context import Context
    from clusterrun.operations.queue_forecast import forecasts

    context = Context()
    spec = to_spec(command or ("train.py",), settled(submission, profile, quiet=as_json))
    shapes, now = forecasts(spec, context), context.clock.now()
    if as_json:
        print(PLAN.json({"asked_at": now, "shapes": shapes}))
        return
    show(SHAPE, shapes, now)
    say(*dict.fromkeys(sentence for forecast in shapes for sentence in _doubts(forecast)))


def _wait(forecast: SizeForecast, now: float) -> str:
    if forecast.starts_at is None:
        return ""
    wait = max(0.0, forecast.starts_at - now)
    return spoken(wait) if wait >= 1 else "now"


def _waited(waits: Waits | None) -> str:
    if waits is None:
        return "no such run"
    return f"{spoken(waits.middle)}, at most {spoken(waits.most)} ({waits.count})"


def _off(off: Waits | None) -> str:
    if off is None:
        return "never tried"
    return f"{_late(off.middle)}, at worst {_late(off.most)} ({off.count})"


def _late(seconds: float) -> str:
    """Return how far a start was from its forecast. A minute does not count."""
    if abs(seconds) < 60:
        return "right"
    direction = "late" if seconds > 0 else "early"
    return f"{spoken(abs(seconds))} {direction}"


def _doubts(forecast: SizeForecast) -> list[str]:
    sentences = []
    if forecast.hidden:
        sentences.append(
            f"{forecast.partition}: {forecast.hidden} nodes run jobs that Slurm does not show you: left out"
        )
    if forecast.unplanned:
        sentences.append(
            f"{forecast.partition}: Slurm has planned no start for {forecast.unplanned} jobs that wait:"
            " those of higher priority make it later"
        )
    if forecast.starts_at is None:
        sentences.append(
            f"{forecast.shape}: {forecast.least} nodes are never seen free at once: ask for fewer"
        )
    return sentences


WAITS = View(
    "A summary of times; null if there are none.",
    ViewField("count", "How many.", INTEGER),
    ViewField("middle", "Their median, in seconds.", NUMBER),
    ViewField("most", "The largest; early is negative.", NUMBER),
)
SHAPE = View(
    "One size.",
    ViewField("shape", "Its nodes and GPUs.", header="SHAPE"),
    ViewField("nodes", "The most nodes that train.", INTEGER),
    ViewField("least", "The fewest nodes that are enough.", INTEGER),
    ViewField("gpus", "GPUs of each node.", INTEGER),
    ViewField(
        "seconds",
        "For how long they must be free.",
        NUMBER,
        header="FOR",
        cell=lambda forecast, now: spoken(forecast.seconds),
        spare=1,
    ),
    ViewField("partition", "The partition."),
    ViewField(
        "starts_at",
        "The expected start; null if it cannot be forecast.",
        optional(TIME),
        header="STARTS",
        cell=lambda forecast, now: (
            "not known" if forecast.starts_at is None else clock_time(forecast.starts_at, now)
        ),
    ),
    ViewField("in", kind=None, header="IN", cell=_wait),
    ViewField(
        "nodes_then",
        "How many would train then.",
        INTEGER,
        header="NODES",
        cell=lambda forecast, now: "" if forecast.starts_at is None else str(forecast.nodes_then),
        spare=2,
    ),
    ViewField("hidden", "Nodes left out, with jobs that you are not shown.", INTEGER),
    ViewField("unplanned", "Jobs that wait and have no planned start.", INTEGER),
    ViewField(
        "waited",
        "How long your runs of about that size waited.",
        optional(WAITS),
        header="RUNS LIKE IT WAITED",
        cell=lambda forecast, now: _waited(forecast.waited),
    ),
    ViewField(
        "off",
        "How much later than forecast the runs started that followed a forecast.",
        optional(WAITS),
        header="FORECASTS WERE",
        cell=lambda forecast, now: _off(forecast.off),
    ),
)
PLAN = View(
    "The output of `plan --json`.",
    ViewField("asked_at", "When Slurm was asked.", TIME),
    ViewField("shapes", "The requested size, then smaller ones.", many(SHAPE)),
)
