"""Turn errors into text on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence

import click

from clusterrun.cli.lazy_group import meant
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput, ClusterrunError, system_reason
from clusterrun.model.visible import visible


class ErrorOptions:
    """How to print errors. ``debug`` shows their traceback."""

    def __init__(self, debug: bool = False) -> None:
        self.debug = debug


def run_reporting_errors(program: Callable[[ErrorOptions], object]) -> int:
    options = ErrorOptions()
    try:
        result = program(options)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.DONE
    except BrokenPipeError:
        discard_stdout()
        return ExitCode.DONE
    except SystemExit as error:
        if error.code != 1:  # with 1 click exits for a broken pipe, and nothing else exits with it
            raise
        discard_stdout()
        return ExitCode.DONE
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        return _usage(error)
    except ClusterrunError as error:
        _trace(options)
        return _print_error(error.seen, error.remedy, error.code)
    except OSError as error:
        _trace(options)
        if error.filename:
            return _print_error(f"{error.filename}: {system_reason(error)}", "", ExitCode.FAILED)
        try:
            os.getcwd()
        except FileNotFoundError:
            message = (
                f"the working directory no longer exists: {os.environ.get('PWD') or 'its path is not known'}"
            )
            return _print_error(message, "change to a directory that exists, and try again", ExitCode.USAGE)
        remedy = "look at the file or disk that stdout goes to" if error.errno in _WRITE_ERRORS else ""
        return _print_error(system_reason(error), remedy, ExitCode.FAILED)
    except Exception:  # noqa: BLE001  the boundary: this is a bug of ours, and it is reported
        _trace(ErrorOptions(debug=True))
        message = "this is a bug of clusterrun, not of yours"
        return _print_error(message, "please report it, with the lines above", ExitCode.FAILED)


_NAMES_BY_ADVICE = {
    "Did you mean --cpus-per-rank?": "--cpus",
    "Use --gpus (or --ranks-per-node for CPU ranks)": "--nproc-per-node --nproc_per_node",
    "Did you mean --mem?": "--memory",
    "Did you mean --nodes?": "--nnodes",
    "Did you mean --partition?": "--queue",
    "Did you mean --max-restarts?": "--restarts --retries",
    "Did you mean --time?": "--time-limit --walltime",
    "It stands before the command: clusterrun --host NAME …; for nodes: --nodelist": "--host",
    "Did you mean --container?": "--image --container-image",
    "Leave it out: clusterrun sets MASTER_ADDR and MASTER_PORT": (
        "--master-addr --master_addr --rdzv-endpoint --rdzv_endpoint"
    ),
}
# Advice for options of torchrun and of other schedulers. ``sbatch_table`` has those of sbatch.
OTHER_NAMES = {name: text for text, names in _NAMES_BY_ADVICE.items() for name in names.split()}


# Options of squeue and scancel that choose jobs.
_FILTERS = frozenset(
    (
        *("-A", "-a", "-j", "-n", "-p", "-t", "-u", "--account", "--all", "--jobs", "--me", "--name"),
        *("--partition", "--state", "--user"),
    )
)


class UnknownOptions(click.NoSuchOption):
    """All options of a command line that its command lacks, and the entries of ``--sbatch``, ``--srun``."""

    def __init__(
        self, options: Sequence[str], sbatch: Sequence[str], srun: Sequence[str], ctx: click.Context
    ):
        super().__init__(options[0], ctx=ctx)
        self.options, self.sbatch, self.srun = options, sbatch, srun


_hints: list[tuple[re.Pattern[str], str]] = []


def hints_for(host: str, commands: Iterable[str]) -> None:
    """Print commands as they are typed on another machine, where this machine is called ``host``."""
    import shlex  # for commands that came from another machine alone

    pattern = re.compile(rf"\bclusterrun (?=(?:{'|'.join(commands)})\b)")
    _hints[:] = [(pattern, f"clusterrun --host {shlex.quote(host)} ".replace("\\", r"\\"))]


def say(*sentences: str) -> None:
    """Print each sentence on a line of stderr, control characters made visible."""
    for sentence in sentences:
        for pattern, instead in _hints:
            sentence = pattern.sub(instead, sentence)
        text = "\n".join(visible(line) for line in sentence.split("\n"))
        # A notice that nobody can read (a full disk, a reader that is gone) does not stop the command.
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def put(text: str) -> None:
    """Print the result of a command that has already acted.

    The text goes to stderr if writing to stdout fails, since a user might repeat a command that failed.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        discard_stdout()
        if not isinstance(error, BrokenPipeError):
            say(f"stdout: {system_reason(error)}; this was to be printed there:", text)


def open_missing_streams() -> None:
    """Open those of stdin, stdout and stderr that were closed before the start on /dev/null.

    Otherwise the next file that is opened takes the number of the stream, and Python prints into it.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (it stays open)


def confirmed(question: str) -> bool:
    """Return whether the user answers yes. The question goes to stderr, since stdout is for data."""
    print(f"{visible(question)} [y/N]: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _usage(error: click.ClickException) -> int:
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        say(error.format_message())  # a bare `clusterrun` is a question, no mistake
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    message = error.format_message()
    names = error.param.opts if type(error) is click.BadParameter and error.param else []
    if names := [name for name in names if name.startswith("--")]:
        message = f"{names[0]}: {error.message}"
    if isinstance(error, click.NoSuchOption):
        options = error.options if isinstance(error, UnknownOptions) else (error.option_name,)
        problems = [_unknown_option(context, name).rstrip(".") for name in options]
        try:
            if isinstance(error, UnknownOptions):
                from clusterrun.script.sbatch_options import check_entries

                check_entries(error.sbatch, error.srun)
        except BadInput as refusal:
            problems += [refusal.seen, refusal.remedy]
        message = "\n".join(problems)
    path = context.command_path if context else "clusterrun"
    return _print_error(message.rstrip("."), f"{path} --help shows what there is", ExitCode.USAGE)


def _unknown_option(context: click.Context | None, name: str) -> str:
    """Return the message for an option that the command of ``context`` lacks, with the alternative."""
    from clusterrun.script.command_words import typographic_marks  # a mistake may take its time

    if marks := typographic_marks(name):
        return f"there is no option {name}. It has a dash that no keyboard types ({marks}): type it anew"
    options = [
        option
        for parameter in (context.command.get_params(context) if context else ())
        for option in parameter.opts
    ]
    arguments = [p for p in (context.command.params if context else ()) if isinstance(p, click.Argument)]
    takes_runs = any((argument.metavar or "").startswith(("RUN", "[RUN")) for argument in arguments)
    if takes_runs and name in _FILTERS:
        guess = " Name each RUN instead: clusterrun status lists them"
    elif "--partition" not in options:
        guess = meant(name, options)
    else:
        # Commands that start a job also know the options of sbatch.
        from clusterrun.script.sbatch_table import instead_of

        setting = " ".join(sys.argv).partition(f" {name}")[2].lstrip("= ").partition(" ")[0]
        own_option = OTHER_NAMES.get(name) or instead_of(name, setting)
        guess = f" {own_option}" if own_option else meant(name, options)
    return f"there is no option {name}.{guess}"


def _print_error(message: str, remedy: str, code: int) -> int:
    say(f"error: {message}" + (f"\n{remedy}" if remedy else ""))
    return code


def _trace(options: ErrorOptions) -> None:
    if options.debug:
        import traceback

        traceback.print_exc()


# An error without a file name most likely concerns stdout, since ours name their file.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def discard_stdout() -> None:
    """Discard the rest of stdout, so that nothing fails at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
