"""`clusterrun alloc`: opens a shell in an allocation of salloc, with the options of submit."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import files
from clusterrun.cli.submit import Submit
from clusterrun.cli.submit_options import dry_run_option, options, profile_option, settled, to_spec
from clusterrun.model import option_table
from clusterrun.model.errors import SchedulerError

if TYPE_CHECKING:
    from clusterrun.operations.context import Context

NOT_OF_AN_ALLOCATION = ("template", "cluster", "srun", "preflight-budget", "preflight-limit")
_OPTIONS = tuple(
    option
    for option in (*option_table.RESOURCES, *option_table.PREFLIGHT)
    if option.group != "environment" and option.name not in NOT_OF_AN_ALLOCATION
)


@click.command(cls=Submit, context_settings={"allow_interspersed_args": False})
@options(_OPTIONS)
@profile_option
@dry_run_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def alloc(command: tuple[str, ...], dry_run: bool, profile: str | None, **submission: Any) -> None:
    """Open a shell in a new allocation, in which `clusterrun run` starts ranks.

    It calls salloc. The allocation ends with the shell, and the exit code is the shell's. COMMAND runs in
    place of the shell.

    \b
    Examples:
      clusterrun alloc --nodes 2 --gpus 8 --time 2h
      clusterrun alloc --nodes 2 --gpus 8 clusterrun run train.py
    """
    from clusterrun.operations.context import Context
    from clusterrun.operations.submit import allocation_argv

    context = Context()
    spec = to_spec(command or ("bash",), settled(submission, profile))
    argv, notices = allocation_argv(spec, context, command)
    say(*notices)
    if dry_run:
        print(shlex.join(argv))
        return
    say(f"{shlex.join(argv)}\n  run     clusterrun run COMMAND, in the shell; its end gives the nodes back")
    become(argv, context)


def become(argv: tuple[str, ...], context: Context) -> NoReturn:
    from clusterrun.script.environment import scrubbed

    environ = scrubbed(context.environ)
    if not environ.get("SHELL"):  # cron and some containers set none, and salloc without a command ends there
        environ["SHELL"] = login_shell(os.getuid())
    sys.stdout.flush()
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        raise SchedulerError(f"salloc could not be started: {error}", "run this where Slurm is") from error


def login_shell(uid: int) -> str:
    """Return a user's shell from the password database, else /bin/sh."""
    try:
        return pwd.getpwuid(uid).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"
