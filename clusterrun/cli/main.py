"""The entry point of `clusterrun`: the table of commands and the handling of errors."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import NoReturn

import click

from clusterrun.cli.error_output import ErrorOptions, hints_for, open_missing_streams, run_reporting_errors
from clusterrun.cli.lazy_group import HOST, CommandEntry, LazyGroup
from clusterrun.cli.process_list import hide_secret_values
from clusterrun.model import contract

COMPLETION_VARIABLE = "_CLUSTERRUN_COMPLETE"

COMMANDS = {
    "submit": CommandEntry("submit", "submit", "Submit a training script to many nodes.", is_common=True),
    "status": CommandEntry("status", "status", "Show the state of runs.", is_common=True),
    "logs": CommandEntry("logs", "logs", "Show what the ranks printed.", is_common=True),
    "cancel": CommandEntry("cancel", "cancel", "End runs.", is_common=True),
    "wait": CommandEntry("wait", "wait", "Wait until runs have ended.", is_common=True),
    "diagnose": CommandEntry(
        "diagnose", "diagnose", "Explain why a run hangs or has failed.", is_common=True
    ),
    "check": CommandEntry("check", "check", "Check nodes without training on them.", is_common=True),
    "top": CommandEntry("top", "top", "Show what a run uses of its nodes and GPUs, live.", is_common=True),
    "exec": CommandEntry(
        "exec", "execute", "Run a command beside a job, on one of its nodes.", is_common=True
    ),
    "shell": CommandEntry("exec", "shell", "Open a shell beside a job, on one of its nodes.", is_common=True),
    "sweep": CommandEntry("sweep", "sweep", "Run a script with many values, and compare.", is_common=True),
    "run": CommandEntry("run", "run", "Start a training script in your allocation.", is_common=True),
    "alloc": CommandEntry("alloc", "alloc", "Open a shell in a new allocation.", is_common=True),
    "lab": CommandEntry("lab", "lab", "A real Slurm cluster on this one machine.", is_common=True),
    "report": CommandEntry("report", "report", "Show what the check of a run found."),
    "nodes": CommandEntry("nodes", "nodes", "Show the nodes that were found unfit before."),
    "convert": CommandEntry("convert", "convert", "Print the submit line of a batch script."),
    "init": CommandEntry("init", "init", "Write a first clusterrun.toml for this site."),
    "gpus": CommandEntry("free_gpus", "gpus", "Show the free GPUs, and the next that become free."),
    "rehearse": CommandEntry("rehearse", "rehearse", "Test whether a script resumes after each fault."),
    "plan": CommandEntry("queue_forecast", "plan", "Show when a run of some size is expected to start."),
    "bench": CommandEntry("bench", "bench", "Measure how a script scales, or estimate it."),
    "forward": CommandEntry("forward", "forward", "Open a port of a run's node on your own machine."),
    "clean": CommandEntry("clean", "clean", "Remove old runs."),
    "config": CommandEntry("config", "config", "Show the configuration and where it comes from."),
    "help": CommandEntry("help", "show", "Show a page of the documentation."),
    "completion": CommandEntry("completion", "completion", "Print the completion script for a shell."),
    "mcp": CommandEntry("mcp", "serve", "Serve the commands as tools to an assistant."),
}


def host_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from clusterrun.cli import shell_complete

    return shell_complete.host_names(incomplete)


def _host(context: click.Context, option: click.Parameter, value: str | None) -> None:
    context.meta[HOST] = value


def _debug(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.ensure_object(ErrorOptions).debug |= value


DEBUG = click.Option(
    ["--debug"], is_flag=True, expose_value=False, callback=_debug, help="Show the traceback of an error."
)


class _Root(LazyGroup):
    """The root group. ``--host`` runs its commands on a cluster."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. The arguments after ``--host NAME`` go to the cluster unchanged."""
        arguments = list(args)
        rest = super().parse_args(ctx, args)
        if (host := ctx.meta.get(HOST)) and not ctx.resilient_parsing:
            from clusterrun.cli.host import run_on_cluster  # all other commands do without

            command_line = self.make_parser(ctx).parse_args(arguments)[1]
            ctx.exit(run_on_cluster(host, command_line, lambda name: self.get_command(ctx, name)))
        return rest


HOST_OPTION = click.Option(
    ["--host"],
    metavar="NAME",
    expose_value=False,
    callback=_host,
    envvar=contract.HOST_VARIABLE,
    shell_complete=host_names,
    help="Run the command on this cluster, over SSH.",
)


@click.group(
    cls=_Root,
    entries=COMMANDS,
    everywhere=(DEBUG,),
    params=[HOST_OPTION, DEBUG],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(contract.VERSION, prog_name="clusterrun")
def root() -> None:
    """PyTorch on many nodes with one command: on Slurm, or on this machine.

    \b
    Examples:
      clusterrun submit --nodes 4 --gpus 8 train.py
      clusterrun logs -f
      clusterrun status
      clusterrun --host cluster status

    RUN is a run id, a Slurm job id, a run's name (the newest), or last.
    """


def main(args: list[str] | None = None) -> int:
    """Run the command line ``args`` and return its exit code; without ``args`` end the process with it."""
    if args is None:
        hide_secret_values()
        open_missing_streams()
    if typed_at := os.environ.pop(contract.TYPED_AT_VARIABLE, ""):  # over SSH, from another machine
        from clusterrun.remote.far_end import supervise_child

        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            supervise_child()
        hints_for(typed_at, COMMANDS)
    if args is None and not (sys.stdout.encoding or "").lower().startswith("utf"):
        # A character that the locale lacks is printed as \xd7, as on stderr. Otherwise stdout raises.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    gc.set_threshold(50_000)  # commands keep their objects, so the usual garbage collection costs a tenth
    code = run_reporting_errors(
        lambda wishes: root.main(
            args, "clusterrun", complete_var=COMPLETION_VARIABLE, standalone_mode=False, obj=wishes
        )
    )
    if args is None:
        exit_now(code)
    return code


def exit_now(code: int) -> NoReturn:
    """End the process at once: the interpreter's own shutdown would cost each command 15 ms more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
