"""`clusterrun clean`: chooses old runs, asks, removes them, and prints the freed size."""

from __future__ import annotations

import re
import sys

import click

from clusterrun.cli.error_output import confirmed, say
from clusterrun.cli.shell_complete import STATE, json_option, runs
from clusterrun.cli.terminal import show
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import parse, spoken
from clusterrun.model.errors import BadInput
from clusterrun.model.phrases import count_of
from clusterrun.model.size import parse_size, sized
from clusterrun.model.states import State
from clusterrun.operations.clean import CleanChoice, CleanPlan, Ended, Removed, plan, remove
from clusterrun.operations.context import Context
from clusterrun.operations.list_runs import since, states
from clusterrun.reports.view import BOOLEAN, INTEGER, TEXT, TIME, View, ViewField, many, one_of, optional

OLD = "30d"
DAY = 86400
SHOWN = 5


@click.command()
@click.option("--older-than", "age", metavar="TIME", help="Runs that ended before: 30d, 12h, 2026-11-20.")
@click.option("--state", **STATE, help="Only runs in these states: failed,timeout.")
@click.option(
    "--larger-than", "size", metavar="SIZE", help="Only runs whose removal frees at least this: 500M, 10G."
)
@click.option(
    "--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the N newest of these runs."
)
@click.option(
    "--dry-run", is_flag=True, help="Show the runs and the space that this would free; remove nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=runs)
def clean(
    names: tuple[str, ...],
    age: str | None,
    state: tuple[str, ...],
    size: str | None,
    keep: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove run directories with all they hold: of each RUN, or of all that fit the options.

    Without any of them: runs that ended more than 30 days ago. Runs that live, may live, or whose
    state is not known are never removed. Asks first.

    \b
    Examples:
      clusterrun clean --dry-run
      clusterrun clean --older-than 90d --yes
      clusterrun clean --state failed,cancelled --older-than 7d --dry-run
      clusterrun clean --larger-than 10G --keep 5 --dry-run
    """
    context = Context()
    if names and (age or state or size or keep):
        raise click.UsageError("RUN and options that choose runs do not go together")
    ended = states(state)
    if live := [state_chosen.value for state_chosen in ended if not state_chosen.ended]:
        message = f"--state {live[0].lower()}: clean removes only runs that have ended"
        raise BadInput(message, "clusterrun cancel ends runs")
    named = tuple(dict.fromkeys(map(context.store.find, names)))
    default = "" if age or named or state or size or keep else OLD
    before = _moment(age or default, context.clock.now())
    planned = plan(context, CleanChoice(named, before, ended, parse_size(size) if size else 0, keep), say)
    if not dry_run and planned.going and not (yes or _user_agrees(planned, as_json, context)):
        say("nothing was removed")
        return ExitCode.FAILED
    removed = Removed() if dry_run else remove(context, planned, say)
    if as_json:
        members = {
            "home": context.store.home,
            "holds_bytes": planned.holds - removed.left_by,
            "runs": planned.runs - len(removed.absent),
            "unmeasured": planned.unmeasured,
            "dry_run": dry_run,
            "frees_bytes": planned.frees if dry_run else removed.freed,
            "removed": planned.going if dry_run else removed.runs,
            "not_removed": [{"run_id": run_id, "why": why} for run_id, why in planned.not_removed],
            "failures": [error.seen for error in removed.failures],
        }
        print(CLEAN.json(members))
    elif (dry_run or yes) and (rows := planned.going if dry_run else removed.runs):
        show(REMOVED, rows, context.clock.now())
    _tell(context, planned, removed, dry_run, default)
    refused = any(run_id in named for run_id, _ in planned.not_removed)
    return ExitCode.FAILED if removed.failures or refused else ExitCode.DONE


def _moment(age: str, now: float) -> float:
    """Return the latest end of a run to be removed. A bare number counts days here, not minutes."""
    if not age:
        return 0.0
    if re.fullmatch("0+[wdhms]?", age.strip()):
        return now  # every run that has ended
    return now - parse(age, DAY) if age.strip().isdecimal() else since(age, now)


def _user_agrees(planned: CleanPlan, as_json: bool, context: Context) -> bool:
    """Ask the user before anything is removed. Raises ``BadInput`` without a terminal."""
    total = f"{count_of(len(planned.going), 'run')} ({_freed(planned.frees, planned.going)})"
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or as_json:
        remedy = "add --yes to remove without a question, or --dry-run to see what would go"
        raise BadInput(f"clean would remove {total} and cannot ask here", remedy)
    show(REMOVED, planned.going, context.clock.now())
    say(_holds(context, planned, Removed()))
    return confirmed(f"Remove {total} with all they hold, checkpoints too?")


def _tell(context: Context, planned: CleanPlan, removed: Removed, dry_run: bool, default: str) -> None:
    for run_id, why in planned.not_removed[:SHOWN]:
        say(f"{run_id} stays: {why}")
    if len(planned.not_removed) > SHOWN:
        say(f"{len(planned.not_removed) - SHOWN} more stay: clusterrun status --all says how they are")
    if removed.finished:
        runs = count_of(len(removed.finished), "run")
        say(f"finished the removal of {runs} that an earlier clean had begun")
    elif planned.leftovers and dry_run:
        runs = count_of(len(planned.leftovers), "run")
        say(f"would finish the removal of {runs} that an earlier clean had begun")
    fitting = f"no run ended more than {default} ago" if default else "no run matches"
    if not planned.going:
        say("nothing to remove" + ("" if planned.not_removed else f": {fitting}"))
    elif dry_run:
        total = f"{count_of(len(planned.going), 'run')} ({_freed(planned.frees, planned.going)})"
        say(f"would remove {total} with all they hold, checkpoints too")
    else:
        say(f"removed {count_of(len(removed.runs), 'run')} ({_freed(removed.freed, removed.runs)})")
    for error in removed.failures:
        say(f"error: {error}")
    say(_holds(context, planned, removed))


def _freed(count: int, going: tuple[Ended, ...]) -> str:
    unsure = any(run.usage is None or not run.usage.whole for run in going)
    return f"at least {sized(count)}" if unsure else sized(count)


def _holds(context: Context, planned: CleanPlan, removed: Removed) -> str:
    unmeasured = f"; {planned.unmeasured} folders could not be measured" if planned.unmeasured else ""
    held = ("at least " if planned.unmeasured else "") + sized(planned.holds - removed.left_by)
    runs = count_of(planned.runs - len(removed.absent), "run")
    return f"{context.store.home} holds {held} in {runs}{unmeasured}"


REMOVED = View(
    "A run.",
    ViewField("run_id", "The run.", read=lambda ended: ended.status.run_id, header="RUN"),
    ViewField("name", "Its name.", read=lambda ended: ended.status.name),
    ViewField(
        "state",
        "How it ended.",
        one_of(state for state in State if state.ended),
        lambda ended: ended.status.state,
        header="STATE",
    ),
    ViewField(
        "ended_at",
        "When it ended.",
        optional(TIME),
        lambda ended: ended.status.ended_at,
        header="ENDED",
        cell=lambda ended, now: f"{spoken(now - ended.at)} ago",
    ),
    ViewField(
        "bytes",
        "The size that its removal frees; null if it was not measured in time.",
        optional(INTEGER),
        lambda ended: ended.frees,
        header="SIZE",
        cell=lambda ended, now: "?" if ended.frees is None else sized(ended.frees),
    ),
)
CLEAN = View(
    "The output of `clean --json`.",
    ViewField("home", "The home of the runs."),
    ViewField("holds_bytes", "The size of the home on its disk, afterwards.", INTEGER),
    ViewField("runs", "The runs in it, afterwards.", INTEGER),
    ViewField("unmeasured", "Folders that could not be measured in time: the home holds more.", INTEGER),
    ViewField("dry_run", "Whether nothing was removed.", BOOLEAN),
    ViewField("frees_bytes", "The size that was freed, or would be.", INTEGER),
    ViewField("removed", "The runs that are gone, or would be; the largest first.", many(REMOVED)),
    ViewField(
        "not_removed",
        "Requested runs that stay.",
        many(View("A run.", ViewField("run_id", "The run."), ViewField("why", "Why it stays."))),
        former="kept",
    ),
    ViewField(
        "failures",
        "Files of removed runs that could not be removed; the next clean tries again.",
        many(TEXT, "The path and the reason."),
    ),
)
