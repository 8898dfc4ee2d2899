"""`clusterrun run`: start ranks inside an existing allocation, in the foreground."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli import standard_input
from clusterrun.cli.error_output import say
from clusterrun.cli.grouped_help import GroupedOption
from clusterrun.cli.shell_complete import files
from clusterrun.cli.submit import Submit, warn_misplaced
from clusterrun.cli.submit_options import defaults, dry_run_option, options, profile_option, settled, to_spec
from clusterrun.cli.terminal import size_words
from clusterrun.config import settings
from clusterrun.config.settings import Setting
from clusterrun.model import option_table
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.model.states import State

if TYPE_CHECKING:
    from clusterrun.model.record import RunRecord
    from clusterrun.model.spec import JobSpec
    from clusterrun.operations.context import Context

# Options of a job that is still to be queued. ``run`` refuses them, and ignores those of a configuration.
QUEUED_OPTIONS = tuple(option.name for option in option_table.CONFIGURABLE.values() if option.queued)
# The allocation decides these options, unless the command line does.
ALLOCATION_OPTIONS = ("nodes", "gpus", "nodelist", "exclude")
ALWAYS = ("follow", "wait")
# Signals that Slurm sends to a batch script, or that its trap sends to the program which starts the ranks.
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


@click.command(cls=Submit, context_settings={"allow_interspersed_args": False})
@options(option for option in option_table.EVERY if option.name not in ALWAYS)
@profile_option
@dry_run_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=files)
def run(command: tuple[str, ...], dry_run: bool, profile: str | None, **submission: Any) -> int:
    """Start COMMAND on the nodes of the allocation that this shell is in, and show what its ranks print.

    Use it inside salloc, an interactive job, or a terminal in a job. Nothing is queued. Ctrl-C ends the run
    and keeps the allocation. If a rank fails, its exit code is returned, as srun does. The default is all
    nodes and GPUs of the allocation.

    \b
    Examples:
      clusterrun run train.py
      clusterrun run --nodes 1 --preflight off train.py --lr 0.1
      clusterrun run --ranks-per-node 4 -m package.module
    """
    from clusterrun.operations.context import Context

    refuse_job_options(submission)
    explicit = {name for name in ALLOCATION_OPTIONS if submission.get(name) is not None}
    explicit |= {"gpus"} if submission.get("gres") else set()
    explicit |= {"preflight"} if submission.get("preflight") is not None else set()
    values = of_the_allocation(settled(submission, profile), explicit)
    say(*settings.misspelt(os.environ))
    spec, context = to_spec(command, values), Context()
    warn_misplaced(spec, "run")
    spec = standard_input.with_input(spec)
    if dry_run:
        from clusterrun.operations.interactive import planned

        draft, allocation = planned(spec, explicit, context)
        say(*draft.notices)
        say(f"would run {_description(draft.plan.spec, allocation.job_id)}")
        say(f"run directory {draft.plan.run_dir}", "with this script:")
        print(draft.plan.script, end="")
        return ExitCode.DONE
    return _run(spec, explicit, context)


for _parameter in run.params:
    if isinstance(_parameter, GroupedOption):
        _name = (_parameter.name or "").replace("_", "-")
        _parameter.hidden = _name in QUEUED_OPTIONS
        _parameter.holds = "the allocation's" if _name in ("nodes", "gpus") else _parameter.holds


def refuse_job_options(
    submission: Mapping[str, Any],
    verb: str = "run",
    remedy: str = "leave it out, or queue a job: clusterrun submit",
) -> None:
    """Raise ``BadInput`` for options of a job that is to be queued. ``verb``: the command that was typed."""
    refused = [
        f"--{name}" for name in QUEUED_OPTIONS if submission.get(name.replace("-", "_")) not in (None, ())
    ]
    if refused:
        are = "is an option" if len(refused) == 1 else "are options"
        message = (
            f"{', '.join(refused)} {are} of a job that is to be queued; {verb} starts in one that is there"
        )
        raise BadInput(message, remedy)


def of_the_allocation(values: dict[str, Setting], explicit: set[str]) -> dict[str, Setting]:
    """Return ``values`` with the defaults of all options that the job or its allocation decides.

    ``explicit``: options of the allocation that the command line decides.
    """
    return {**values, **defaults({*QUEUED_OPTIONS, *ALWAYS, *(set(ALLOCATION_OPTIONS) - explicit)})}


def _run(spec: JobSpec, explicit: set[str], context: Context) -> int:
    from clusterrun.cli.follow_run import follow_to_end
    from clusterrun.local.processes import send
    from clusterrun.operations.interactive import begin

    interrupt_at_signals()
    record = begin(spec, explicit, context, say, standard_input.files(spec))
    # The coordinator asks Slurm for the reason of the signal.
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: send(record.process, number))
    say(f"run {record.run_id}\n{_description(record.spec, record.job_id)}; Ctrl-C ends the run, not the job")
    code = follow_to_end(context, record, True, partial(_interrupted, context, record))
    if code != ExitCode.FAILED:
        return code
    status = context.inquiry().statuses([record.run_id], ask=False)[0]
    return (status.state is State.FAILED and status.exit_code) or code


def interrupt_at_signals() -> None:
    """End as Ctrl-C does at SIGTERM and SIGHUP. nohup ignores SIGHUP, and that stays."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _interrupted(context: Context, record: RunRecord, *_: str) -> int:
    """End the run and wait for its end. A second Ctrl-C stops the waiting."""
    from clusterrun.cli.follow_run import print_end
    from clusterrun.operations.interactive import end

    say(f"\nending {record.run_id}; Ctrl-C again: without waiting for it")
    try:
        end(record, context)
    except KeyboardInterrupt:
        say(f"it is being ended: clusterrun status {record.run_id}")
        return ExitCode.INTERRUPTED
    print_end(context, context.inquiry().statuses([record.run_id], ask=False)[0])
    return ExitCode.INTERRUPTED


def _description(spec: JobSpec, job_id: str) -> str:
    size = size_words(spec.nodes, spec.local_size, spec.gpu_type, spec.gpus)
    size = f"{spec.nodes} nodes, one process each" if spec.per_node else size
    return f"{spec.name} in job {job_id}, {size}, on {spec.nodelist}"
