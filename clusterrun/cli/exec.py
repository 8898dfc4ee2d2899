"""`clusterrun exec` and `clusterrun shell`: this process becomes a command beside a run's ranks."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from clusterrun import system
from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import files, runs
from clusterrun.operations.context import Context
from clusterrun.operations.exec_in_job import ExecTarget, exec_argv, exec_beside_job
from clusterrun.operations.find_run import find_run_or_job
from clusterrun.operations.job_step import step_environment
from clusterrun.script.environment import scrubbed

_NODE = click.option("--node", default="", metavar="N", help="On this node (name or number).")
_RANK = click.option(
    "--rank", type=click.IntRange(min=0), metavar="R", help="On the node of rank R, in its environment."
)


class AfterDashes(click.Command):
    """A command whose arguments after ``--`` belong to another program, never to us."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments after ``--``. Raise ``click.UsageError`` if there are none."""
        if ctx.resilient_parsing and "--" in args:
            ctx.meta["command"] = ()
        if ctx.resilient_parsing or {"-h", "--help"} & set(args[: _dashes(args)]):
            return super().parse_args(ctx, args[: _dashes(args)])
        ctx.meta["command"] = tuple(args[_dashes(args) + 1 :])
        if not ctx.meta["command"]:
            raise click.UsageError("say what to run after two dashes: clusterrun exec -- nvidia-smi", ctx)
        return super().parse_args(ctx, args[: _dashes(args)])

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return our parameters. Completion after the dashes offers files for the other program."""
        if ctx.resilient_parsing and "command" in ctx.meta:
            return [click.Argument(["command"], nargs=-1, shell_complete=files)]
        return super().get_params(ctx)


def _dashes(args: list[str]) -> int:
    return args.index("--") if "--" in args else len(args)


@click.command("exec", cls=AfterDashes, options_metavar="[OPTIONS] [RUN] -- CMD...", add_help_option=True)
@_NODE
@_RANK
@click.argument("run", default="last", metavar="", shell_complete=runs)
@click.pass_context
def execute(context: click.Context, run: str, node: str, rank: int | None) -> NoReturn:
    """Run CMD beside the job on one of its nodes, in a rank's directory, with its environment and GPUs.

    Without --node and --rank: on the first node. CMD shares CPUs and memory with the ranks and ends
    with the job. CLUSTERRUN_RANK_PID is the process id of the rank whose environment it has.
    RUN may be the number of any running Slurm job of yours.

    \b
    Examples:
      clusterrun exec -- nvidia-smi
      clusterrun exec last --rank 3 -- sh -c 'py-spy dump --pid $CLUSTERRUN_RANK_PID'
      clusterrun exec --node 1 -- df -h /tmp
    """
    _become(run, node, rank, context.meta["command"], sys.stdin.isatty() and sys.stdout.isatty())


@click.command()
@_NODE
@_RANK
@click.argument("run", default="last", shell_complete=runs)
def shell(run: str, node: str, rank: int | None) -> NoReturn:
    """Open a shell beside the job on one of its nodes, in a rank's directory and environment.

    \b
    Examples:
      clusterrun shell
      clusterrun shell last --rank 3
      clusterrun shell --node 1
    """
    _become(run, node, rank, (), sys.stdin.isatty())


def target(node: str, rank: int | None) -> ExecTarget:
    if node and rank is not None:
        raise click.UsageError("--node and --rank are two ways to say where: give one")
    return ExecTarget(-1 if rank is None else rank, node)


def _become(run: str, node: str, rank: int | None, command: tuple[str, ...], terminal: bool) -> NoReturn:
    context, place = Context(), target(node, rank)
    run_or_job = find_run_or_job(context, run, say)
    if isinstance(run_or_job, str):
        argv = exec_argv(context, run_or_job, place, command, terminal, say)
        environment = scrubbed(context.environ)
    else:
        argv = exec_beside_job(context, run_or_job, place, command, terminal, say)
        environment = step_environment(context)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    system.become(argv, environment)
