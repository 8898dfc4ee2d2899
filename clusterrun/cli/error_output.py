"""The one place where an error becomes text on stderr and an exit code; decides nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from clusterrun.cli.lazy_group import meant
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.visible import visible


class ErrorOptions:
    """What the user wants of errors: ``debug`` shows their traceback."""

    def __init__(self, debug: bool = False) -> None:
        self.debug = debug


def guarded(program: Callable[[ErrorOptions], object]) -> int:
    """The exit code of ``program``, every error of it said in words."""
    wishes = ErrorOptions()
    try:
        return _run(program, wishes)
    except ClusterrunError as error:
        _trace(wishes)
        return _answer(error.seen, error.remedy, error.code)
    except OSError as error:
        _trace(wishes)
        where = f"{error.filename}: " if error.filename else ""
        return _answer(f"{where}{(error.strerror or str(error)).lower()}", "", ExitCode.FAILED)
    except Exception:  # noqa: BLE001  the boundary: what comes here is our own mistake, and it is said
        _trace(ErrorOptions(debug=True))
        return _answer(
            "this is a bug of clusterrun, not of yours",
            "please report it, with the lines above",
            ExitCode.FAILED,
        )


def _run(program: Callable[[ErrorOptions], object], wishes: ErrorOptions) -> int:
    try:
        result = program(wishes)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.DONE
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.DONE
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        return _usage(error)


OTHER_NAMES = {
    "--gres": "--gpus",
    "--gpus-per-node": "--gpus",
    "--nproc-per-node": "--ranks-per-node",
    "--ntasks-per-node": "--ranks-per-node",
    "--cpus-per-task": "--cpus-per-rank",
    "--nnodes": "--nodes",
    "--job-name": "--name",
    "--time-limit": "--time",
}
"""What Slurm, torchrun and others call an option of ours."""


def say(sentence: str) -> None:
    """A line for the person, on stderr, with foreign text made harmless."""
    text = "\n".join(visible(line) for line in sentence.split("\n"))
    print(text, file=sys.stderr, flush=True)


def _usage(error: click.ClickException) -> int:
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        say(error.format_message())  # a bare `clusterrun` is a question, no mistake
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        known = [name for p in context.command.get_params(context) for name in p.opts] if context else []
        ours = OTHER_NAMES.get(error.option_name, "")
        guess = f" Did you mean {ours}?" if ours in known else meant(error.option_name, known)
        message = f"there is no option {error.option_name}.{guess}"
    path = context.command_path if context else "clusterrun"
    return _answer(message.rstrip("."), f"{path} --help shows what there is", ExitCode.USAGE)


def _answer(seen: str, remedy: str, code: int) -> int:
    say(f"error: {seen}" + (f"\n{remedy}" if remedy else ""))
    return code


def _trace(wishes: ErrorOptions) -> None:
    if wishes.debug:
        import traceback

        traceback.print_exc()


def _silence_stdout() -> None:
    """Whoever read our output is gone: Python must not complain about it while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
