"""`clusterrun sweep`: runs a script for many points, and shows their states and results."""

from __future__ import annotations

import csv
import json
import math
import os
import shlex
import sys
from functools import partial
from typing import Any

import click

from clusterrun.cli.error_output import put, say
from clusterrun.cli.grouped_help import grouped
from clusterrun.cli.lazy_group import meant
from clusterrun.cli.shell_complete import FILE, files, json_option, sweeps
from clusterrun.cli.submit import Submit
from clusterrun.cli.submit_options import (
    after_option,
    dry_run_option,
    options,
    profile_option,
    settled,
    to_spec,
)
from clusterrun.cli.terminal import show, table
from clusterrun.config import settings
from clusterrun.model import option_table
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import spoken
from clusterrun.model.errors import NoSuchRun
from clusterrun.model.frozen import replace
from clusterrun.operations.context import Context
from clusterrun.reports.view import (
    INTEGER,
    TEXT,
    TIME,
    View,
    ViewField,
    any_of,
    by_name,
    many,
    one_of,
    optional,
)
from clusterrun.runs.sweep_records import SweepRecord, Sweeps

SWEEP = View(
    "A sweep.",
    ViewField("sweep_id", "The sweep.", header="SWEEP"),
    ViewField("name", "Its name."),
    ViewField("submitted_at", "When it was begun.", TIME),
    ViewField("age", kind=None, header="AGE"),
    ViewField("points", "How many points it has.", INTEGER, header="POINTS"),
    ViewField("runs", "How many of its runs are in which state, in words.", header="RUNS"),
)
SWEEPS = View(
    "The output of `sweep list --json`.", ViewField("sweeps", "The sweeps, newest first.", many(SWEEP))
)
POINT = View(
    "A point.",
    ViewField("run_id", "The run of the point; null: not queued.", optional(TEXT)),
    ViewField("point", "Each name of the sweep with its value.", by_name(TEXT)),
)
STARTED = View(
    "The output of `sweep --json` once its points are queued.",
    ViewField("sweep_id", "The sweep."),
    ViewField("name", "Its name."),
    ViewField("job_id", "The newest array; empty without Slurm."),
    ViewField("points", "The points, in their order.", many(POINT)),
)
RESULT = View(
    "A point.",
    ViewField("name", "The name of the run."),
    ViewField("run_id", "The run; null: not queued.", optional(TEXT, lambda run_id: not run_id)),
    ViewField("state", "Its state, or REMOVED, or NOT QUEUED."),
    ViewField(
        "point", "Each name of the sweep with its value.", by_name(TEXT), lambda result: dict(result.point)
    ),
    ViewField(
        "reported",
        "The results of the run; null for a number that is not finite.",
        by_name(any_of("string", "number", "boolean", "null")),
        lambda result: {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in result.reported
        },
    ),
    ViewField("reason", "Why the run is in that state; empty if it completed."),
)
RESULTS = View(
    "What `sweep results --json` prints, best first.",
    ViewField("sweep_id", "The sweep."),
    ViewField("by", "The result that the runs are sorted by; empty: none was reported."),
    ViewField(
        "best",
        "Which value of it comes first.",
        one_of(("smallest", "largest")),
        lambda results: "largest" if results.largest else "smallest",
    ),
    ViewField("results", "The points, best first.", many(RESULT)),
)


_WITHOUT = ("follow", "wait")
_common = partial(grouped, group="resources", common=True)


class SweepGroup(click.Group):
    """A group in which everything but the name of a subcommand begins a sweep."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``sweep --set …`` means ``sweep start --set …``."""
        if args and args[0] not in self.commands:
            if not args[0].startswith("-"):
                problem = f"sweep {args[0]!r}: --set or --points stands before the command, or it is one of"
                problem += f" {', '.join(self.commands)}.{meant(args[0], self.commands)}"
                if os.path.isfile(args[0]) and not args[0].endswith(".py"):
                    problem += f" clusterrun convert {shlex.join(args)} prints the line of a batch script."
                raise click.UsageError(problem, ctx)
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group(cls=SweepGroup)
def sweep() -> None:
    """Run a script with many values of its arguments, and compare what comes out.

    \b
    Examples:
      clusterrun sweep results last
    """


@sweep.command("start", cls=Submit, context_settings={"allow_interspersed_args": False})
@_common(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values with commas, or range(5); all combinations are run.",
)
@_common(
    "--points", "file", **FILE, default="", help="A .csv or .toml file with a point in each row or [[point]]."
)
@_common("--at-most", type=click.IntRange(min=1), metavar="K", help="Most runs at the same time.")
@options(option_table.RESOURCES)
@profile_option
@options(option_table.PREFLIGHT)
@options(option for option in option_table.SUBMISSION if option.name not in _WITHOUT)
@after_option
@dry_run_option
@grouped("--json", "as_json", is_flag=True, help="Print one JSON document.", common=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=files)
def begin(
    command: tuple[str, ...],
    sets: tuple[str, ...],
    file: str,
    at_most: int | None,
    after: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    profile: str | None,
    **submission: Any,
) -> int:
    """Run COMMAND once for every point; {name} in it, or in a value of --env, stands for a value.

    Each point is a run: NAME.0, NAME.1, …. Slurm queues them as an array; without Slurm this command starts
    each when processors are free. The word `start` is optional. status, logs, wait and cancel take the
    sweep's name.

    \b
    Examples:
      clusterrun sweep --set lr=0.1,0.01 --set seed='range(5)' train.py --lr {lr} --seed {seed}
      clusterrun sweep --nodes 2 --gpus 8 --at-most 4 --points points.csv train.py --lr {lr}
      clusterrun sweep --dry-run --set lr=0.1,0.01 train.py --lr {lr}
    """
    from clusterrun.config.sweep_points import points
    from clusterrun.operations.sweep import new_sweep, start

    if not sets and not file:
        raise click.UsageError(
            "a sweep needs --set NAME=VALUES or --points FILE; for one run: clusterrun submit"
        )
    values = settled(submission, profile)
    say(*settings.misspelt(os.environ))
    context, spec = Context(tell=say), to_spec(command, values, after)
    record = new_sweep(spec, points(sets, file), at_most or 0, context)
    if dry_run:
        from clusterrun.config.sweep_points import point_text
        from clusterrun.operations.sweep import checked, run_spec

        facts, _, notices = checked(record, context)
        say(*dict.fromkeys(notices))
        rows, lines = [], []
        for index, point in enumerate(record.points):
            planned = run_spec(record, facts.spec, index)
            rows.append({"name": planned.name, "point": dict(point.values), "command": planned.command})
            lines.append(f"{planned.name}  {point_text(point.values)}  {' '.join(planned.command)}")
        if not as_json:
            say(f"would queue {len(lines)} runs:")
        print(json.dumps({"name": record.name, "points": rows}) if as_json else "\n".join(lines))
        return ExitCode.DONE
    return _announce(start(record, context, say), as_json)


def _announce(record: SweepRecord, as_json: bool) -> int:
    missing = len(record.waiting)
    queued = len(record.run_ids)
    say(f"sweep {record.name}: {queued} of {queued + missing} runs queued")
    if as_json:
        rows = [{"run_id": point.run_id or None, "point": dict(point.values)} for point in record.points]
        members = {"sweep_id": record.sweep_id, "name": record.name, "job_id": record.job_id}
        put(STARTED.json({**members, "points": rows}))
    else:
        put(record.sweep_id)
    name = shlex.quote(record.name)
    for verb, line in (("look", "status"), ("results", "sweep results"), ("cancel", "cancel")):
        say(f"  {verb:<7} clusterrun {line} {name}")
    if missing:
        say(f"  {missing} more  clusterrun sweep continue {name}")
    return ExitCode.FAILED if missing else ExitCode.DONE


def _named(context: Context, word: str) -> SweepRecord:
    record = Sweeps(context.store).find(word)
    if record is None:
        raise NoSuchRun(f"there is no sweep {word!r}", "clusterrun sweep list shows the sweeps there are")
    return record


@sweep.command()
@click.option("--by", metavar="NAME", default="", help="Sort by this result.  [default: the first]")
@click.option("--max", "largest", is_flag=True, help="The largest is the best.")
@click.option("--plot", **FILE, default="", help="Draw the results; FILE is .png or .svg.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
@click.argument("word", metavar="[SWEEP]", default="last", shell_complete=sweeps)
def results(word: str, by: str, largest: bool, plot: str, as_csv: bool, as_json: bool) -> None:
    """Show what the runs of SWEEP reported, best first: the smallest, or with --max the largest.

    A result is what rank 0 gave to clusterrun.training.report(loss=…) last; where it gave nothing,
    the last line of its output that is a JSON object.

    \b
    Examples:
      clusterrun sweep results last
      clusterrun sweep results train --by accuracy --max --csv
      clusterrun sweep results last --plot sweep.svg
    """
    from clusterrun.operations.sweep_results import gathered

    if as_csv and as_json:
        raise click.UsageError("--csv and --json do not go together")
    context = Context(tell=say)
    record = _named(context, word)
    points = gathered(record, context, by, largest, say)
    if plot:
        from clusterrun.bench.sweep_plot import draw_sweep

        draw_sweep(points, record.name, plot)
        say(f"drawn: {plot}")
    if as_json:
        print(RESULTS.json(points))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([points.heads, *points.rows()])
    else:
        table(points.heads, points.rows())


@sweep.command()
@click.option("--failed", is_flag=True, help="The points whose runs failed or were ended: the default.")
@options(option_table.CONFIGURABLE[name] for name in ("mem", "time", "partition", "requeue"))
@click.argument("word", metavar="[SWEEP]", default="last", shell_complete=sweeps)
def retry(word: str, failed: bool, **changes: Any) -> int:
    """Queue the points of SWEEP again whose runs failed or were ended; those runs stay, to be read.

    \b
    Examples:
      clusterrun sweep retry last
      clusterrun sweep retry --time 3h --mem 64G last
    """
    from clusterrun.config.spec_fields import fields
    from clusterrun.operations.sweep import retried

    context = Context(tell=say)
    record = _named(context, word)
    record = replace(record, spec=replace(record.spec, **fields(changes, os.environ)))
    return _queue_rest(context, retried(record, context, say), "no run of it has failed")


@sweep.command("continue")
@click.argument("word", metavar="[SWEEP]", default="last", shell_complete=sweeps)
def go_on(word: str) -> int:
    """Queue the points of SWEEP that are not queued yet.

    Points that Slurm never got are queued too, if the command that queued them was killed.

    \b
    Examples:
      clusterrun sweep continue last
    """
    from clusterrun.operations.sweep import unqueued

    context = Context(tell=say)
    record = unqueued(_named(context, word), context, say)
    otherwise = f"all its points were queued; clusterrun sweep retry {record.name} queues failed ones"
    return _queue_rest(context, record, otherwise)


def _queue_rest(context: Context, record: SweepRecord, otherwise: str) -> int:
    from clusterrun.operations.sweep import start

    if not record.waiting:
        say(f"sweep {record.name}: {otherwise}")
        return ExitCode.DONE
    return _announce(start(record, context, say), False)


@sweep.command("list")
@json_option
def show_all(as_json: bool) -> None:
    """Show the sweeps, newest first.

    \b
    Examples:
      clusterrun sweep list
    """
    from clusterrun.operations.list_runs import tally

    context = Context(tell=say)
    known_sweeps = Sweeps(context.store)
    inquiry, now = context.inquiry(say), context.clock.now()
    rows = []
    for record in filter(None, map(known_sweeps.find, known_sweeps.ids())):
        states = tally(inquiry.statuses(record.run_ids, skip_missing=True))
        unqueued_runs = f"{len(record.waiting)} not queued" if record.waiting else ""
        runs, points = ", ".join(filter(None, (states, unqueued_runs))), len(record.points)
        about = {"sweep_id": record.sweep_id, "name": record.name, "submitted_at": record.submitted_at}
        rows.append({**about, "age": spoken(now - record.submitted_at), "points": points, "runs": runs})
    if as_json:
        print(SWEEPS.json({"sweeps": rows}))
    elif rows:
        show(SWEEP, rows)
    else:
        say("there are no sweeps yet: clusterrun sweep --set lr=0.1,0.01 train.py --lr '{lr}' starts one")
