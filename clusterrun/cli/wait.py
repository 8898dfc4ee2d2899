"""`clusterrun wait`: waits for the end of runs and returns the worst exit code."""

from __future__ import annotations

import json
import sys

import click

from clusterrun.cli.error_output import put, say
from clusterrun.cli.follow_run import detached, exit_code, print_end
from clusterrun.cli.shell_complete import runs
from clusterrun.cli.status_view import document
from clusterrun.model.contract import ExitCode
from clusterrun.model.record import RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.operations.list_runs import runs_named
from clusterrun.operations.wait import RunWait, notify_of_end
from clusterrun.runs.sweep_records import Sweeps
from clusterrun.script.checks import check_notify

# If more runs than this are awaited, details are printed only for those that failed.
MANY = 3


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, as status does.")
@click.option(
    "--notify",
    "urls",
    multiple=True,
    metavar="URL",
    help="Send a message from here as each RUN ends: slack://…, https://…, mailto:….",
)
@click.argument("names", metavar="[RUN]...", nargs=-1, shell_complete=runs)
def wait(names: tuple[str, ...], as_json: bool, urls: tuple[str, ...]) -> int:
    """Wait until every RUN has ended; exit 0 if all ended well, else 1 (3: its nodes were unfit).

    If Slurm reports that a run can never start, the exit code is 1 and the reason is shown. Ctrl-C stops
    only the waiting.

    \b
    Examples:
      clusterrun wait
      clusterrun wait last
      clusterrun wait last --notify mailto:ada@example.org
    """
    check_notify(urls, sys.executable)
    context = Context(tell=say)
    ids = runs_named(context, names or ("last",))
    ended: list[RunStatus] = []
    try:
        for run_id in ids:
            status = RunWait(context, run_id, say).wait(None)
            ended.append(status)
            for line in notify_of_end(context, status, urls):
                say(line)
            if not as_json:
                put(f"{status.run_id} {status.state.value}")
            if len(ids) <= MANY or status.state is not State.COMPLETED:
                print_end(context, status)
    except KeyboardInterrupt:
        return detached(" ".join(ids), "wait")
    if as_json:
        put(json.dumps(document(ended, context)))
    codes = [exit_code(status) for status in ended]
    for sweep in filter(None, map(Sweeps(context.store).find, names)):
        if sweep.waiting:
            say(f"{len(sweep.waiting)} points are not queued: clusterrun sweep continue {sweep.name}")
            codes.append(ExitCode.FAILED)
    return max(codes)
