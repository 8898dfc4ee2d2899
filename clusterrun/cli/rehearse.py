"""`clusterrun rehearse`: runs a script under each fault and reports what differs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import FILE, files, json_option
from clusterrun.cli.submit import OptionsThenProgram
from clusterrun.cli.terminal import coloured, folded, has_live_line, painted, renew_line
from clusterrun.model import duration
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.model.visible import visible
from clusterrun.runs.private_files import private_folder, write_whole

if TYPE_CHECKING:
    from clusterrun.rehearse.rehearsal import Rehearsal, Result

TITLE = 18
# Seconds between two updates of the progress line on a terminal, and between two lines elsewhere.
RENEW_SECONDS, LINE_SECONDS = 1.0, 30.0
JOIN_SECONDS = 5.0
# Time limit of an allocation beyond the budget, for its start and its end.
MORE_SECONDS = 300
STYLES = {"ok": "green", "note": "yellow", "FAIL": "red", "unknown": "magenta"}


@click.command(cls=OptionsThenProgram, context_settings={"allow_interspersed_args": False})
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="Simulated nodes.")
@click.option(
    "--ranks-per-node", type=click.IntRange(1), default=2, show_default=True, help="Ranks per node."
)
@click.option("--gpus", type=click.IntRange(0), default=0, help="GPUs per node, if this machine has any.")
@click.option(
    "--cluster",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    help="This machine, or an allocation of Slurm: that of this shell, or a new one.",
)
@click.option(
    "--steps",
    type=click.IntRange(4),
    help="Optimizer steps of a run.  [default: until the fourth checkpoint, at least 20]",
)
@click.option(
    "--budget", metavar="TIME", default="15m", show_default=True, help="Time limit of the whole rehearsal."
)
@click.option(
    "--notice", metavar="TIME", default="120s", show_default=True, help="Notice before the time limit."
)
@click.option("--faults", metavar="NAME,…", default="", help="Only these faults; see --list-faults.")
@click.option("--elastic", is_flag=True, help="Also continue with one node fewer, and with one more.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="A variable for the ranks.")
@json_option
@click.option("--junit", **FILE, help="Write the results for a CI system.")
@click.option("--html", **FILE, help="Write a page with the curves.")
@click.option(
    "--keep", metavar="FOLDER", shell_complete=files, help="Keep copies and runs in this new folder."
)
@click.option("--list-faults", is_flag=True, help="Print the faults, and end.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def rehearse(
    command: tuple[str, ...], budget: str, notice: str, faults: str, list_faults: bool, **options: Any
) -> int:
    """Test, on this machine or through Slurm, whether a script resumes: run it under each fault, compare.

    COMMAND is a script, module or program as in submit, unchanged, with its arguments. It runs twice
    undisturbed, then under each fault, always in copies of this directory. Each difference
    from the undisturbed run is reported with its cause. Exit code 0: all is well.

    \b
    Examples:
      clusterrun rehearse --list-faults
      clusterrun rehearse train.py --checkpoint-dir checkpoints
      clusterrun rehearse --steps 100 --junit rehearsal.xml --html rehearsal.html train.py
      clusterrun rehearse --nodes 1 --faults kill,mid-save train.py
      clusterrun rehearse --cluster slurm --elastic train.py
    """
    from clusterrun.rehearse.faults import ELASTIC, FAULTS

    if list_faults:
        for fault in (*FAULTS, *ELASTIC):
            needs = " (--elastic)" if fault in ELASTIC else ""
            print(f"{fault.name:<12} {fault.does}{needs}")
        return ExitCode.DONE
    if not command:
        raise click.UsageError("say what to rehearse: clusterrun rehearse train.py")
    names = tuple(filter(None, (name.strip() for name in faults.split(","))))
    fault_names = [fault.name for fault in (*FAULTS, *ELASTIC)]
    for name in names:
        if name not in fault_names:
            raise BadInput(f"--faults: there is no fault {name}", f"give some of {','.join(fault_names)}")
    slurm = options["cluster"] == "slurm"
    from clusterrun.script.command_words import check_words
    from clusterrun.script.nested_launchers import check_command
    from clusterrun.script.script_texts import job_number_notices

    ranks_per_node = 0 if options["gpus"] else options["ranks_per_node"]
    size = {"nodes": options["nodes"], "gpus": options["gpus"], "ranks_per_node": ranks_per_node}
    spec = JobSpec(command, os.getcwd(), **size)
    say(*check_words(spec, "rehearse"), *check_command(spec, slurm, "rehearse"), *job_number_notices(spec))
    if slurm and not os.environ.get("SLURM_JOB_ID"):
        # Run the same command line inside a new allocation of salloc.
        from clusterrun.cli.alloc import become
        from clusterrun.cli.submit_options import settled, to_spec
        from clusterrun.operations.context import Context
        from clusterrun.operations.submit import allocation_argv

        size = {
            "nodes": options["nodes"] + options["elastic"],
            "gpus": options["gpus"],
            "ranks_per_node": None if options["gpus"] else options["ranks_per_node"],
            "time": duration.parse(budget) + MORE_SECONDS,
        }
        context = Context()
        submit_again = (sys.executable, "-m", "clusterrun", *sys.argv[1:])
        spec = to_spec(submit_again, settled(size, None))
        argv, notices = allocation_argv(replace(spec, name="rehearse"), context, submit_again)
        say(*notices)
        say(shlex.join(argv))
        become(argv, context)
    keep, folder = options["keep"], _folder(options["keep"], slurm)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # our runs are ended before we are
    try:
        from clusterrun.config.spec_fields import spec_of
        from clusterrun.rehearse.in_allocation import AllocationRuns
        from clusterrun.rehearse.rehearsal import Rehearsal
        from clusterrun.rehearse.rehearsed_runs import RehearsedRuns
        from clusterrun.rehearse.working_copy import outside

        line = ProgressLine()
        budget_seconds, notice_seconds = duration.parse(budget), duration.parse(notice)
        fields = {key: options[key] for key in ("nodes", "gpus", "cluster")} | {"preflight": "off"}
        fields["ranks_per_node"] = ranks_per_node
        fields["env"] = list(options["env"])
        cwd = os.getcwd()
        spec = spec_of(command, cwd, fields, os.environ, no_progress=0)
        runs = (AllocationRuns if slurm else RehearsedRuns)(
            spec, folder, dict(os.environ), float(budget_seconds)
        )
        runs.fit(options["nodes"] + options["elastic"])
        for place in outside(command[1:], cwd):
            say(f"{place} lies outside of this directory: it is not copied, all runs share it")
        say(f"each run works in a copy of {cwd}")
        rehearsal = Rehearsal(runs, line.say, options["steps"] or 0, float(notice_seconds))
        results: list[Result] = []
        with line.showing(runs.progress):
            for result in rehearsal.rehearse(names, options["elastic"]):
                results.append(result)
                if not options["as_json"]:
                    with line.hidden():
                        _show(result)
        return _end(rehearsal, results, command, options)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


class ProgressLine:
    """Shows the current run in a line on stderr: updated on a terminal, else printed every 30 s."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_live = has_live_line()

    @contextmanager
    def showing(self, describe: Callable[[], str]) -> Iterator[None]:
        """Show what ``describe`` returns until the block ends."""
        ended = threading.Event()

        def work() -> None:
            text = ""
            while not ended.wait(RENEW_SECONDS if self._is_live else LINE_SECONDS):
                with suppress(OSError):
                    text = visible(describe())
                with self._lock:
                    if ended.is_set():
                        return
                    if self._is_live:
                        renew_line(text)
                    else:
                        say(text)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            with self.hidden():
                pass
            thread.join(JOIN_SECONDS)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line while something else is printed."""
        with self._lock:
            renew_line("")
            yield

    def say(self, *lines: str) -> None:
        with self.hidden():
            say(*lines)


def _folder(keep: str | None, shared: bool) -> str:
    """Return a new folder for copies and runs, shared with nodes or not. Raise ``BadInput`` if it exists."""
    from clusterrun.operations.context import Context

    if not keep:
        home = Context().store.home if shared else None
        if home:
            private_folder(home)
        return tempfile.mkdtemp(prefix="clusterrun-rehearse-", dir=home)
    try:
        os.makedirs(keep, 0o700)
    except OSError as error:
        raise BadInput(f"--keep {keep}: {error.strerror}", "name a folder that does not exist yet") from error
    return os.path.abspath(keep)


def _show(result: Result) -> None:
    """Print a row, and below it places in the script and the code to write instead."""
    width = max(60, shutil.get_terminal_size((110, 24)).columns)
    colour = coloured(sys.stdout)
    for index, finding in enumerate(result.findings):
        title = result.title if index == 0 else ""
        level = painted(finding.level.value, STYLES[finding.level.value]) if colour else finding.level.value
        lines = folded(finding.message, width - TITLE - 8)
        lines[-1] += f"  {level}"
        for number, line in enumerate(lines):
            head = "" if number else title
            print(f"{head:<{TITLE}}{line}")
        for detail in filter(None, (", ".join(finding.lines), finding.remedy)):
            for line in folded(detail, width - TITLE - 2):
                print(" " * (TITLE + 2) + line)
    sys.stdout.flush()


def _end(
    rehearsal: Rehearsal, results: list[Result], command: tuple[str, ...], options: dict[str, Any]
) -> int:
    from clusterrun.rehearse import rehearsal_report

    steps = rehearsal.plan.steps if rehearsal.plan else 0
    if options["junit"]:
        suite = rehearsal_report.junit(results, os.path.basename(command[0]))
        write_whole(os.path.abspath(options["junit"]), suite)
    if options["html"]:
        write_whole(os.path.abspath(options["html"]), rehearsal_report.page(results, shlex.join(command)))
    if options["as_json"]:
        print(json.dumps(rehearsal_report.document(results, command, steps)))
    return ExitCode.DONE if rehearsal_report.well(results) else ExitCode.FAILED
