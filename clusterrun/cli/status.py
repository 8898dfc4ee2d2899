"""`clusterrun status`: prints runs as a table, a single run in detail, or JSON."""

from __future__ import annotations

import json

import click

from clusterrun.cli import status_view, terminal
from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import STATE, json_option, runs
from clusterrun.model.contract import ExitCode
from clusterrun.model.frozen import fields
from clusterrun.model.phrases import count_of
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.operations.list_runs import EVERYTHING, Filter, RunList, since, states


@click.command()
@click.option("--all", "everything", is_flag=True, help="All runs, not only the live and newest ones.")
@click.option("--all-jobs", is_flag=True, help="All your Slurm jobs, also those of other launchers.")
@click.option("--state", **STATE, help="Only runs in these: failed,timeout; live; ended.")
@click.option("--name", metavar="PATTERN", help="Only runs of that name; * and ? are wildcards.")
@click.option("--since", "begun", metavar="TIME", help="Only runs submitted since then: 1d, 90m, 2026-11-20.")
@click.option("-w", "--watch", "live", is_flag=True, help="Refresh until the named runs have ended.")
@json_option
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=runs)
def status(
    names: tuple[str, ...],
    everything: bool,
    all_jobs: bool,
    state: tuple[str, ...],
    name: str | None,
    begun: str | None,
    live: bool,
    as_json: bool,
) -> int:
    """Show the live and the newest runs, or one RUN in detail.

    A filter searches all runs; several filters are combined. `clusterrun status RUN` shows why a run waits
    or has failed, and the command that submits it again.

    \b
    Examples:
      clusterrun status
      clusterrun status last
      clusterrun status --state failed --since 1d
      clusterrun status --watch last
      clusterrun status --all-jobs
      clusterrun status --json
    """
    if all_jobs:
        if names or everything or begun or live:
            raise click.UsageError("--all-jobs shows every job of yours: it takes --state, --name and --json")
        return _show_all_jobs(states(state), name or "", as_json)
    if live and as_json:
        raise click.UsageError("--watch and --json do not go together: --json is one document")
    context = Context(tell=say)
    chosen = Filter(states(state), name or "", since(begun, context.clock.now()) if begun else 0.0)
    listing = RunList(context, names, chosen, everything)
    if live:
        from clusterrun.cli.status_watch import watch

        return watch(context, listing)
    inquiry = context.inquiry(say)
    statuses = listing.look(inquiry)
    say(*inquiry.notices)
    if as_json:
        print(json.dumps(status_view.document(statuses, context if listing.named else None)))
    elif len(listing.named) == 1 and chosen == EVERYTHING:
        from clusterrun.cli.run_detail import show

        show(context, statuses[0])
    else:
        count = len(statuses)
        if not listing.named and chosen == EVERYTHING and any(status.sweep for status in statuses):
            statuses = listing.folded(statuses, inquiry)
        if statuses:
            status_view.show(statuses, context.clock.now())
        elif chosen == EVERYTHING:
            say("there are no runs yet: clusterrun submit train.py starts one")
        else:
            say("no run matches: clusterrun status --all shows all runs")
        older = listing.older(count)
        if older > 0 and statuses:
            say(f"{count_of(older, 'older run')}: clusterrun status --all")
    return ExitCode.DONE


def _show_all_jobs(only: tuple[State, ...], pattern: str, as_json: bool) -> int:
    from clusterrun.operations.all_jobs import all_jobs  # a bare `status` does not need it

    context = Context(tell=say)
    jobs = all_jobs(context, only, pattern, say)
    if as_json:
        document = {"jobs": [{**fields(job), "run": fields(job.run) if job.run else None} for job in jobs]}
        print(status_view.ALL_JOBS.json(document))
    elif jobs:
        print("\n".join(terminal.aligned(status_view.JOB.cells(jobs, context.clock.now()))))
    else:
        say(
            "you have no such job in the queue of Slurm"
            if only or pattern
            else "you have no job in the queue of Slurm"
        )
    return ExitCode.DONE
