"""`clusterrun bench scaling`: turns options into a study, measures it and prints the table."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any

import click

from clusterrun.cli.advise import advise
from clusterrun.cli.error_output import confirmed, say
from clusterrun.cli.shell_complete import FILE, files, json_option
from clusterrun.cli.submit_options import defaults, options, profile_option, settled, to_spec
from clusterrun.model import option_table
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput

# Resource options that a study sets itself. Those of a profile are for other runs.
SIZED_BY_CELLS = ("nodes", "name", "spares")


@click.group()
def bench() -> None:
    """Measure how a script scales, or estimate it.

    \b
    Examples:
      clusterrun bench scaling
      clusterrun bench advise --parameters 7B --nodes 16
    """


@bench.command(context_settings={"allow_interspersed_args": False})
@click.option("--script", **FILE, help="The script to measure.  [default: the shipped train.py]")
@click.option("--worlds", metavar="1,2,…", help="World sizes.  [default: 1, 2, 4, … as the machine has]")
@click.option(
    "--strategies", metavar="NAME,…", help="Strategies of train.py: single, dp, ddp, ddp-spawn, fsdp."
)
@click.option(
    "--strong",
    "growth",
    flag_value="strong",
    default="strong",
    help="The work of a world is always the same.",
)
@click.option("--weak", "growth", flag_value="weak", help="The work of a rank is always the same.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs of each configuration."
)
@click.option(
    "--parameters", metavar="N", help="Parameters of the model, if the script does not report them."
)
@click.option(
    "--oversubscribe",
    is_flag=True,
    help="Do not ask before this machine starts more ranks than it has cores.",
)
@click.option("--no-probe", is_flag=True, help="Leave out the short job that measures all-reduce.")
@click.option("--name", "study", metavar="NAME", help="Name of the study.")
@click.option("--fresh", is_flag=True, help="Discard the results of earlier calls.")
@click.option("--plot", **FILE, help="Draw the speed-up: .png or .svg (needs matplotlib).")
@click.option("--dry-run", is_flag=True, help="Print the planned runs; start nothing.")
@json_option
@options(option for option in option_table.RESOURCES if option.name not in SIZED_BY_CELLS)
@profile_option
@click.argument(
    "command_line", metavar="[COMMAND] [ARGS]...", nargs=-1, type=click.UNPROCESSED, shell_complete=files
)
def scaling(
    script: str | None,
    command_line: tuple[str, ...],
    profile: str | None,
    plot: str | None,
    **submission: Any,
) -> int:
    """Run a script at several world sizes and strategies, and show what they gained.

    COMMAND is a script, module or program as in submit, with its arguments; none: the shipped
    train.py. Its rank 0 prints steps_per_second=12.3; else whole runs are timed. In its arguments
    {world}, {strategy}, {64*world} and {64/world} are filled in. Every configuration is a run of its
    own; the same command again continues where this one stopped.

    \b
    Examples:
      clusterrun bench scaling --worlds 1,2 --strategies single,ddp -- --steps 50
      clusterrun bench scaling --worlds 1,2 train.py --batch-size {64/world}
      clusterrun bench scaling --weak --worlds 1,2 --plot speed-up.png --script train.py
      clusterrun bench scaling --gpus 8 --worlds 1,8,16,32 --partition gpu train.py
    """
    from clusterrun.bench import plot as picture
    from clusterrun.cli.bench_study import prepared
    from clusterrun.operations.context import Context

    if plot:
        picture.check(plot)
    values = settled(submission, profile)
    context = Context()
    # A study starts many runs, and nobody wants a message about each.
    spec = to_spec(("study",), {**values, **defaults((*SIZED_BY_CELLS, "notify"))}, preflight="off")
    study = prepared(context, spec, script, command_line, submission)
    if submission["dry_run"]:
        return study.print_plan(submission["as_json"])
    if study.remaining() and not submission["oversubscribe"] and not _accepts_crowding(study.crowded()):
        say("nothing was measured")
        return ExitCode.FAILED
    try:
        study.measure(say)
    except KeyboardInterrupt:
        say("\nstopped; what is measured is kept, and a run under way continues. To continue the study:")
        say(f"  {shlex.join(['clusterrun', *sys.argv[1:]])}")
        return ExitCode.INTERRUPTED
    from clusterrun.bench.plot import draw
    from clusterrun.cli import bench_study

    table = study.table()
    if submission["as_json"]:
        print(json.dumps(bench_study.document(study, table)))
    else:
        bench_study.show(study, table)
    if plot:
        draw(table, bench_study.title(study), bench_study.caption(study, table), plot)
        say(f"drawn: {os.path.abspath(plot)}")
    return ExitCode.FAILED if any(row.failed for row in table.rows) else ExitCode.DONE


bench.add_command(advise)


def _accepts_crowding(crowded: str) -> bool:
    """Return whether the user accepts more ranks than cores. Raise ``BadInput`` if there is no terminal."""
    if not crowded:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            crowded, "--oversubscribe starts them anyway; smaller --worlds give comparable figures"
        )
    return confirmed(f"{crowded}. Measure anyway?")
