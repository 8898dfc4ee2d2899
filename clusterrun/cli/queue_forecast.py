"""`clusterrun plan`: when which shape of a run is expected to start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import files
from clusterrun.cli.submit import Submit
from clusterrun.cli.submit_options import options, profile_option, settled, to_spec
from clusterrun.cli.terminal import iso, table
from clusterrun.model import option_table
from clusterrun.model.duration import clock_time, spoken

if TYPE_CHECKING:
    from clusterrun.operations.queue_forecast import ShapeForecast, Waits


@click.command(cls=Submit, context_settings={"allow_interspersed_args": False})
@options(option_table.EVERY)
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def plan(command: tuple[str, ...], as_json: bool, profile: str | None, **given: Any) -> None:
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
    spec = to_spec(command or ("train.py",), settled(given, profile, quiet=as_json))
    found, now = forecasts(spec, context), context.clock.now()
    if as_json:
        print(json.dumps({"asked_at": iso(now), "shapes": [_entry(one) for one in found]}))
        return
    heads = ("SHAPE", "FOR", "STARTS", "IN", "NODES", "RUNS LIKE IT WAITED", "FORECASTS WERE")
    table(heads, [_row(one, now) for one in found], spare=("FOR", "NODES"))
    say(*dict.fromkeys(sentence for one in found for sentence in _doubts(one)))


def _row(one: ShapeForecast, now: float) -> list[str]:
    known = one.starts_at is not None
    wait = max(0.0, (one.starts_at or now) - now)
    return [
        one.shape,
        spoken(one.seconds),
        clock_time(one.starts_at or now, now) if known else "not known",
        (spoken(wait) if wait >= 1 else "now") if known else "",
        str(one.nodes_then) if known else "",
        _waited(one.waited),
        _off(one.off),
    ]


def _waited(waits: Waits | None) -> str:
    if waits is None:
        return "no such run"
    return f"{spoken(max(0.0, waits.middle))}, at most {spoken(max(0.0, waits.most))} ({waits.count})"


def _off(off: Waits | None) -> str:
    if off is None:
        return "never tried"
    return f"{_late(off.middle)}, at worst {_late(off.most)} ({off.count})"


def _late(seconds: float) -> str:
    """How far a start was from its forecast; within a minute is as good as said."""
    if abs(seconds) < 60:
        return "right"
    return f"{spoken(abs(seconds))} {'late' if seconds > 0 else 'early'}"


def _doubts(one: ShapeForecast) -> list[str]:
    said = []
    if one.hidden:
        said.append(f"{one.partition}: {one.hidden} nodes run jobs that Slurm does not show you: left out")
    if one.unplanned:
        said.append(
            f"{one.partition}: for {one.unplanned} jobs that wait Slurm has planned no start: those of higher"
            " priority make it later"
        )
    if one.starts_at is None:
        said.append(f"{one.shape}: {one.least} nodes are never seen free at once: ask for fewer")
    return said


def _entry(one: ShapeForecast) -> dict[str, Any]:
    from clusterrun.model.document import encode

    return {**encode(one), "starts_at": iso(one.starts_at)}
