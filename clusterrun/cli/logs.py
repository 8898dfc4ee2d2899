"""`clusterrun logs`: selects ranks and lines, and prints their text on stdout."""

from __future__ import annotations

import os

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.log_output import print_following, print_pieces
from clusterrun.cli.shell_complete import runs
from clusterrun.logs.attempt_logs import LogSelection, numbers
from clusterrun.logs.filters import Grep, LineFilter
from clusterrun.logs.format import plain
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.model.record import RunState
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.operations.list_runs import runs_named, since
from clusterrun.operations.logs import RunLogs


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow to the end of the run, through restarts.")
@click.option("--rank", metavar="LIST", help="Only these ranks: 0,3-5.")
@click.option("--node", metavar="LIST", help="Only these nodes: a name, or numbers as in 0,2-3.")
@click.option(
    "--stream", type=click.Choice(["out", "err", "both"]), default="both", help="Only stdout or stderr."
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each stream.")
@click.option("--fold", is_flag=True, help="Show a line of many ranks once, with the ranks.")
@click.option("--grep", metavar="PATTERN", help="Only lines that match this regular expression.")
@click.option("--since", "begun", metavar="TIME", help="Only lines since then: 10m, a date.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="K", help="Attempt K instead of the newest.")
@click.option("--raw", "as_is", is_flag=True, help="Print the original bytes, without headings.")
@click.argument("run", default="last", shell_complete=runs)
def logs(
    run: str,
    follow: bool,
    rank: str | None,
    node: str | None,
    stream: str,
    tail: int | None,
    fold: bool,
    grep: str | None,
    begun: str | None,
    attempt: int | None,
    as_is: bool,
) -> int:
    """Show what the ranks of RUN printed, in time order to about a second, headed by node and rank.

    With -f the exit code is that of `clusterrun wait`, or 141 if its reader ends first (| head). Ctrl-C
    ends only the display.

    \b
    Examples:
      clusterrun logs
      clusterrun logs -f last
      clusterrun logs --rank 0,3-5 --stream err
      clusterrun logs --tail 20 --fold
      clusterrun logs --grep 'loss|error' --since 10m
    """
    if fold and as_is:
        raise click.UsageError("--fold and --raw do not go together")
    context = Context(tell=say)
    run_ids = runs_named(context, [run])
    begin = since(begun, context.clock.now()) if begun else 0.0
    line_filter = LineFilter(begin, Grep(grep, plain) if grep else None, as_is)
    if follow and len(run_ids) > 1:
        message = f"{run} is a sweep of {len(run_ids)} runs, and one is followed"
        raise BadInput(message, f"clusterrun logs -f {run_ids[0]}")
    for run_id in run_ids:
        ranks = _ranks(context, run_id, rank, node)
        selection = LogSelection(ranks, stream, tail, attempt, begin, line_filter.exact)
        reader = RunLogs(context, run_id, selection, say)
        if follow:
            return _follow(context, reader, run_id, fold, line_filter)
        if len(run_ids) > 1:
            say(f"== {run_id}  {visible(context.store.read(run_id).point)}")
        if not print_pieces(line_filter(reader.so_far()), reader, fold, as_is):
            if line_filter.in_vain:
                say(line_filter.in_vain)
            elif tail != 0:
                _nothing(context, reader, run_id)
    return ExitCode.DONE


def _ranks(context: Context, run_id: str, rank: str | None, node: str | None) -> frozenset[int] | None:
    if rank is None and node is None:
        return None
    nodes, ranks_per_node = RunLogs(context, run_id).shape
    ranks = numbers(rank, nodes * ranks_per_node, "rank") if rank is not None else frozenset[int]()
    if node is not None:
        state = context.store.state(run_id)
        ranks |= {
            node_number * ranks_per_node + local
            for node_number in _nodes(node, nodes, state)
            for local in range(ranks_per_node)
        }
    return ranks


def _nodes(text: str, count: int, state: RunState | None) -> frozenset[int]:
    names = state.attempts[-1].nodes if state and state.attempts else ()
    if text in names:
        return frozenset([names.index(text)])
    try:
        return numbers(text, count, "node")
    except BadInput as error:
        if not names:
            raise
        remedy = f"its nodes are {', '.join(names)}; by number: --node 0,3-5"
        raise BadInput(f"there is no node {text!r} in this run", remedy) from error


def _follow(context: Context, logs: RunLogs, run_id: str, fold: bool, line_filter: LineFilter) -> int:
    from clusterrun.cli.follow_run import detached, exit_code, print_end, print_usage

    try:
        print_following(logs, fold, line_filter)
    except KeyboardInterrupt:
        return detached(run_id, "logs -f")
    if line_filter.in_vain:
        say(line_filter.in_vain)
    status = logs.watch.look()
    print_end(context, status)
    print_usage(context, status)
    return exit_code(status)


def _nothing(context: Context, logs: RunLogs, run_id: str) -> None:
    status = logs.watch.look()
    reason = f": {status.reason}" if status.reason else ""
    if status.state.ended:
        say(f"no output: the run has ended, {status.state.value}{reason}")
    else:
        say(f"no output yet; the run is {status.state.value}, {status.phase.value}{reason}")
    path = context.store.paths(run_id).job_output
    if os.path.exists(path) and os.path.getsize(path):
        say(f"output of the batch script itself: {path}")
