"""`clusterrun wait`: returns when runs have ended, with the worst of their exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator

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
from clusterrun.operations.wait import RunWait
from clusterrun.runs.sweep_records import Sweeps

MANY = 3
"""Of more runs only those are told at length that did not end well."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, as status does.")
@click.argument("wanted", metavar="[RUN]...", nargs=-1, shell_complete=runs)
def wait(wanted: tuple[str, ...], as_json: bool) -> int:
    """Wait until every RUN has ended; exit 0 if all ended well, else 1 (3: its nodes were unfit).

    A run that can never start, as Slurm says, is not waited for: exit 1, with the reason. Ctrl-C
    stops only the waiting.

    \b
    Examples:
      clusterrun wait
      clusterrun wait last
    """
    context = Context(tell=say)
    ids = runs_named(context, wanted or ("last",))
    try:
        ended = [_wait(context, run_id, as_json, len(ids)) for run_id in ids]
    except KeyboardInterrupt:
        return detached(" ".join(ids), "wait")
    if as_json:
        put(json.dumps(document(ended, context)))
    return max((*map(exit_code, ended), *_unqueued(context, wanted)))


def _unqueued(context: Context, wanted: tuple[str, ...]) -> Iterator[ExitCode]:
    for found in filter(None, map(Sweeps(context.store).find, wanted)):
        if found.waiting:
            say(f"{len(found.waiting)} points are not queued: clusterrun sweep continue {found.name}")
            yield ExitCode.FAILED


def _wait(context: Context, run_id: str, as_json: bool, count: int) -> RunStatus:
    status = RunWait(context, run_id, say).wait(None)
    if not as_json:
        put(f"{status.run_id} {status.state.value}")
    if count <= MANY or status.state is not State.COMPLETED:
        print_end(context, status)
    return status
