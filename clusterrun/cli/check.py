"""`clusterrun check`: runs only the pre-flight check, waits for it and prints its report."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.error_output import put as put_text
from clusterrun.cli.error_output import say
from clusterrun.cli.grouped_help import GroupedCommand, grouped
from clusterrun.cli.report import await_report, outputs, put
from clusterrun.cli.run import ALLOCATION_OPTIONS, interrupt_at_signals, of_the_allocation, refuse_job_options
from clusterrun.cli.shell_complete import FILE
from clusterrun.cli.submit import dry
from clusterrun.cli.submit_options import defaults, dry_run_option, options, profile_option, settled, to_spec
from clusterrun.config.settings import DEFAULT, Setting
from clusterrun.model import option_table
from clusterrun.model.contract import FIT_VARIABLE, UNFIT_VARIABLE, ExitCode
from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.phrases import count_of
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.model.spec import JobSpec
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.operations.interactive import begin, end, planned
from clusterrun.reports import selftest_findings

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


MOST_BYTES = 64 << 20
# Time limit of the job beyond the budget, for agents to start and end. Short jobs start sooner.
MARGIN_SECONDS = 600
# Extra budget per node for a check of all pairs, which takes a round for every node.
SECONDS_PER_NODE = 4
# Extra budget for --table, and for --burn besides the load itself.
TABLE_SECONDS, BURN_SECONDS = 150, 30

_more = partial(grouped, group="check")
_common = partial(_more, common=True)
_file = partial(_more, **FILE)


SUBCOMMANDS = ("report", "nodes")


class CheckCommand(GroupedCommand):
    """`check` itself, or the command of that name for `check report` and `check nodes`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in SUBCOMMANDS and parent and isinstance(parent.command, click.Group):
            subcommand = parent.command.get_command(parent, args[0])
            assert subcommand is not None
            return subcommand.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # for a TAB alone

        names = [CompletionItem(name) for name in SUBCOMMANDS if name.startswith(incomplete)]
        return names + super().shell_complete(ctx, incomplete)


@click.command(cls=CheckCommand)
@options(option_table.RESOURCES)
@profile_option
@options(option_table.PREFLIGHT)
@_common(
    "--level",
    type=click.Choice(["full", "quick"]),
    default="full",
    help="quick: pairs only if something is wrong.",
    holds="full",
)
@_common("--all-pairs", is_flag=True, help="Test every pair of nodes: as many rounds as nodes.")
@_common("--table", is_flag=True, help="Also measure collectives by size, each GPU, and each rail.")
@_common(
    "--burn",
    metavar="TIME",
    default="",
    help="Also load the GPUs for TIME (60s) and read their clocks meanwhile.",
)
@_common(
    "--selftest-gpu",
    is_flag=True,
    help="Test everything on GPUs in two minutes, and write a file for a report.",
)
@_file("--selftest-file", help="File of --selftest-gpu.  [default: here, named by its run]")
@_more("--anonymous", is_flag=True, help="With --selftest-gpu: leave out the names of nodes and users.")
@_file("--read", help="Show the unexpected results in a file of --selftest-gpu.")
@_common("--export", is_flag=True, help="In a job: print the result as shell lines for eval.")
@_common("--new-job", is_flag=True, help="In a job: queue a job of its own for the check.")
@dry_run_option
@outputs
def check(
    profile: str | None,
    level: str,
    all_pairs: bool,
    table: bool,
    burn: str,
    selftest_gpu: bool,
    selftest_file: str | None,
    anonymous: bool,
    read: str | None,
    export: bool,
    new_job: bool,
    dry_run: bool,
    as_json: bool,
    html: str | None,
    prometheus: str | None,
    **submission: Any,
) -> int:
    """Check nodes without training on them: each node, each link, and all together.

    `check report` shows what the check of a run found, `check nodes` which nodes were unfit before.
    The exit code is 3 if nodes are unfit, else 0. Warnings and links that could not be judged are in the
    report and leave it at 0. Ctrl-C leaves the check running.

    In a job (sbatch, salloc) it checks the nodes of this job, and Ctrl-C ends the check. Two lines of any
    batch script: eval "$(clusterrun check --export)", then srun --nodelist=$CLUSTERRUN_FIT_NODELIST.

    \b
    Examples:
      clusterrun check
      clusterrun check --nodes 2 --html report.html
      clusterrun check --nodes 2 --level quick --json
      clusterrun check --nodes 3 --all-pairs --preflight-budget 5m
      clusterrun check --nodes 2 --gpus 8 --table --burn 60s
      clusterrun check --selftest-gpu --gpus 8 --partition gpu
      eval "$(clusterrun check --export)"
      clusterrun check report last
      clusterrun check nodes
    """
    if read:
        remedy = "name a file of check --selftest-gpu"
        try:
            with open(read, encoding="utf-8") as file:
                selftest = json.loads(file.read(MOST_BYTES))
        except (OSError, ValueError) as error:
            raise BadInput(f"{read} cannot be read: {error}", remedy) from error
        if not isinstance(selftest, dict) or not isinstance(selftest.get("format"), int):
            raise BadInput(f"{read} is not a file of check --selftest-gpu", remedy)
        if selftest["format"] > selftest_findings.FORMAT:
            newest = selftest_findings.FORMAT
            message = f"{read} has format {selftest['format']}; this clusterrun reads {newest}"
            raise BadInput(message, "read it with the clusterrun that wrote it")
        return _show_selftest(selftest)
    from clusterrun.api import launch

    if export and as_json:
        raise click.UsageError("--export prints shell lines and --json a document: give one of them")
    try:
        seconds = parse(burn, option_table.DURATIONS["seconds"]) if burn else 0
    except BadInput as error:
        raise BadInput(f"--burn {error.seen}", error.remedy) from error
    context, values = Context(), settled(submission, profile)
    if context.environ.get("SLURM_JOB_ID") and not (new_job or selftest_gpu):
        spec_of = partial(_spec, level=level, all_pairs=all_pairs, table=table, burn=seconds)
        report = check_nodes_of_job(submission, values, spec_of, context, dry_run)
        if report is None:
            return ExitCode.DONE if dry_run else ExitCode.FAILED
        if export:
            with redirect_stdout(sys.stderr):  # stdout is for eval
                put(report, False, html, prometheus)
            # The last line sets ``$?`` of ``eval`` to the exit code of the check.
            fit = [node.node for node in report.nodes if node.role in ("rank", "spare")]
            if report.verdict is Grade.FAIL and len(fit) == len(report.nodes):
                fit = []  # the nodes fail together, and none is at fault
            variables_of_steps = step_sizes(os.environ, fit)
            if variables_of_steps:
                say("srun leaves out the unfit nodes only with --nodelist=$CLUSTERRUN_FIT_NODELIST")
            names = {
                FIT_VARIABLE: fold(fit),
                UNFIT_VARIABLE: fold([node.node for node in report.nodes if node.node not in fit]),
                **dict(report.environment),
                **variables_of_steps,
            }
            lines = [f"export {name}={shlex.quote(value)}" for name, value in names.items()]
            put_text("\n".join([*lines, f"(exit {_exit_code(report):d})"]))
            return _exit_code(report)
        return _put_report(report, as_json, html, prometheus)
    if export:
        raise click.UsageError("--export is for a job: SLURM_JOB_ID is not set here, or --new-job was given")
    spec = _spec(values, level, all_pairs, table, seconds)
    if dry_run:
        return dry(spec, context, as_json)
    if selftest_gpu:
        if as_json or html or prometheus:
            raise click.UsageError("--selftest-gpu writes a JSON file: --selftest-file FILE says where")
        from clusterrun.bench import gpu_selftest
        from clusterrun.runs.private_files import write_whole

        spec = gpu_selftest.with_gpus(spec, context)
        selftest = gpu_selftest.measure(replace(spec, name=spec.name or gpu_selftest.NAME), context, say)
        path = os.path.abspath(selftest_file or f"selftest-{selftest['run']}.json")
        write_whole(path, gpu_selftest.text_of(selftest, context, anonymous) + "\n")
        shows = f"clusterrun check --read {os.path.basename(path)} shows it"
        say(f"written: {path} (attach it to a report; {shows})")
        return _show_selftest(selftest)
    run = launch(spec, context, say)
    try:
        say(f"checks {count_of(spec.allocated, 'node')}: {run.run_id}")
        report_of_run = await_report(context, run.run_id)
    except KeyboardInterrupt:
        say(
            "\ndetached: the check continues. To come back:\n"
            f"  clusterrun wait {run.run_id}; clusterrun report {run.run_id}\n"
            f"or end it: clusterrun cancel {run.run_id}"
        )
        return ExitCode.INTERRUPTED
    if report_of_run is None:
        return ExitCode.FAILED
    return _put_report(report_of_run, as_json, html, prometheus)


def _put_report(report: Report, as_json: bool, html: str | None, prometheus: str | None) -> int:
    put(report, as_json, html, prometheus)
    return _exit_code(report)


def _exit_code(report: Report) -> int:
    return ExitCode.UNFIT if report.verdict is Grade.FAIL else ExitCode.DONE


def step_sizes(environ: Mapping[str, str], fit: Sequence[str]) -> dict[str, str]:
    """Return the variables of Slurm that make a step of ``srun --nodelist`` run on the nodes ``fit`` only.

    The batch script has those of the whole job. srun adds nodes to a list that is shorter, and scripts take
    ``MASTER_ADDR`` from the node list.
    """
    nodes = expand(environ.get("SLURM_JOB_NODELIST", ""))
    tasks = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_TASKS_PER_NODE", ""))
        for _ in range(int(times or 1))
    ]
    if not fit or not set(fit) < set(nodes):
        return {}
    variables = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(len(fit)))
    variables.update(dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), fold(fit)))
    if len(tasks) == len(nodes):
        tasks = [count for node, count in zip(nodes, tasks) if node in fit]
        variables["SLURM_TASKS_PER_NODE"] = ",".join(map(str, tasks))
        if "SLURM_NTASKS" in environ:
            variables.update(dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(sum(tasks))))
    return variables


def _spec(values: dict[str, Setting], level: str, all_pairs: bool, table: bool, burn: int) -> JobSpec:
    """Return the spec of a check, without options that only training needs."""
    values = {**values, **defaults(option.name for option in option_table.SUBMISSION)}
    extent: dict[str, Any] = {"preflight": level, "all_pairs": all_pairs, "table": table, "burn": burn}
    spec = to_spec(("check",), values, alone=True, **extent)
    budget = spec.preflight_budget
    if all_pairs and values["preflight-budget"].origin == DEFAULT:
        budget += SECONDS_PER_NODE * spec.allocated
    budget += TABLE_SECONDS * table + (burn + BURN_SECONDS if burn else 0)
    return replace(spec, preflight_budget=budget, time=spec.time or budget + MARGIN_SECONDS)


def _show_selftest(selftest: dict[str, Any]) -> int:
    print("\n".join(visible(line) for line in selftest_findings.lines(selftest)))
    grade = selftest_findings.grade(selftest)
    return {Grade.FAIL: ExitCode.UNFIT, Grade.UNDETERMINED: ExitCode.FAILED}.get(grade, ExitCode.DONE)


_REMEDY = "give --new-job for a job of its own"


def check_nodes_of_job(
    submission: Mapping[str, Any],
    values: dict[str, Setting],
    spec_of: Callable[[dict[str, Setting]], JobSpec],
    context: Context,
    dry_run: bool,
) -> Report | None:
    """Check the nodes of this job, and return the report; None if there is none, or with ``dry_run``.

    Raises ``BadInput`` for options of a job that is to be queued.
    """
    refuse_job_options(submission, "check", _REMEDY)
    explicit = {name for name in ALLOCATION_OPTIONS if submission.get(name) is not None} | {"preflight"}
    spec = replace(spec_of(of_the_allocation(values, explicit)), time=0)
    if "MASTER_PORT" in context.environ:  # torchrun's port, which the check dials
        own_port = ("MASTER_PORT", context.environ["MASTER_PORT"])
        spec = replace(spec, environment=(own_port, *spec.environment))
    if dry_run:
        drafted, allocation = planned(spec, explicit, context)
        say(f"would check {drafted.plan.spec.nodelist} of job {allocation.job_id}")
        return None
    interrupt_at_signals()
    record = begin(spec, explicit, context, say)
    say(f"checks {record.spec.nodelist} of job {record.job_id}: {record.run_id}")
    try:
        return await_report(context, record.run_id)
    except KeyboardInterrupt:
        end(record, context)
        raise
