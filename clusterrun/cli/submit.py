"""`clusterrun submit`: turns options into a spec, submits it and prints the next commands."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli import standard_input
from clusterrun.cli.error_output import UnknownOptions, put, say
from clusterrun.cli.grouped_help import GroupedCommand, grouped
from clusterrun.cli.shell_complete import files
from clusterrun.cli.submit_options import (
    after_option,
    dry_run_option,
    options,
    profile_option,
    settled,
    to_spec,
)
from clusterrun.cli.terminal import size_words
from clusterrun.config import settings
from clusterrun.model import option_table
from clusterrun.model.container import RUNTIMES
from clusterrun.model.contract import ExitCode
from clusterrun.model.document import encode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import fields
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.notify.notify_address import shortened
from clusterrun.reports.view import BOOLEAN, OBJECT, TEXT, View, ViewField, many, one_of
from clusterrun.script import sbatch_table

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from clusterrun.model.record import RunRecord
    from clusterrun.operations.context import Context
    from clusterrun.script.plan import Plan


class OptionsThenProgram(click.Command):
    """A command whose options end where the user's command begins: at ``-m``, ``--`` or the first word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Mark the beginning of a command that starts with ``-m``, which is not an option of ours."""
        options = [option for option in self.params if isinstance(option, click.Option)]
        names = {name for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}
        takes_value = {name for option in options if not option.is_flag for name in option.opts}
        unknown: list[str] = []
        entries: dict[str, list[str]] = {"--sbatch": [], "--srun": []}
        place = 0
        while args[place : place + 1] not in ([], ["-"], ["--"], ["-m"]) and args[place].startswith("-"):
            word, _, value = args[place].partition("=")
            rest, is_short = "", not word.startswith("--")
            if is_short:  # in ``-ft`` the last letter may take a value
                for number, letter in enumerate(args[place][1:], 2):
                    word, rest = f"-{letter}", args[place][number:]
                    if word in takes_value or word not in names:
                        break
            takes_next = word in takes_value
            if word not in names:
                unknown.append(word)
                takes_next = sbatch_table.takes_value(word)
            takes_next = takes_next and not rest and (is_short or "=" not in args[place])
            if word in entries:
                entries[word] += args[place + 1 : place + 2] if takes_next else [value]
            place += 2 if takes_next else 1
        if unknown and not ctx.resilient_parsing:
            raise UnknownOptions(unknown, entries["--sbatch"], entries["--srun"], ctx)
        if args[place : place + 1] == ["-m"]:
            args = [*args[:place], "--", *args[place:]]
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            if not standard_input.was_redirected():
                raise
            message = f"{ctx.info_name} reads no script from its standard input: the script is an argument"
            path = standard_input.path()
            line = f"{ctx.command_path} {shlex.join([*typed, path or 'FILE'])}"
            remedy = f"type {line}" if path else f"put it into a file, and type {line}"
            raise BadInput(message, remedy) from None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return our parameters. Completion within the user's command only sees that command."""
        parameters = super().get_params(ctx)
        if not (ctx.resilient_parsing and ctx.params.get("command")):
            return parameters
        return [parameter for parameter in parameters if isinstance(parameter, click.Argument)]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete our options, or files within the user's command."""
        if ctx.params.get("command"):
            return self.get_params(ctx)[0].shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


class Submit(OptionsThenProgram, GroupedCommand):
    """A command with all options of a submission, followed by the user's command."""


@click.command(cls=Submit, context_settings={"allow_interspersed_args": False})
@options(option_table.RESOURCES)
@profile_option
@options(option_table.PREFLIGHT)
@options(option_table.SUBMISSION)
@after_option
@dry_run_option
@grouped("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=files)
def submit(
    command: tuple[str, ...],
    after: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    profile: str | None,
    **submission: Any,
) -> int:
    """Submit COMMAND to run on every node, once per rank, and return at once.

    COMMAND is a script (train.py), a module (-m package.module) or any program, with its own
    arguments; options of submit stand before it. Lists (--env, --setup, …) add to those of the
    configuration.

    \b
    Examples:
      clusterrun submit train.py
      clusterrun submit --nodes 4 --gpus 8 --time 2h train.py --lr 0.1
      clusterrun submit --nodes 2 --ranks-per-node 4 -m package.module
      clusterrun submit --setup 'module load cuda' --sbatch exclusive --follow train.py
      clusterrun submit --nodes 2 --gpus 8 --dry-run train.py
    """
    from clusterrun.operations.context import Context

    values = settled(submission, profile)
    follow, wait = bool(values["follow"].value), bool(values["wait"].value)
    if follow and as_json:
        raise click.UsageError("--json and --follow do not go together: both want stdout")
    say(*settings.misspelt(os.environ))
    spec, context = to_spec(command, values, after), Context()
    warn_misplaced(spec, "submit")
    spec = standard_input.with_input(spec)
    if dry_run:
        return dry(spec, context, as_json)
    from clusterrun.operations.submit import send
    from clusterrun.script.environment import not_obeyed

    record, dropped = send(spec, context, say, standard_input.files(spec))
    if dropped:
        say(f"not passed to the job, because they would change it: {', '.join(dropped)}")
        if unused := not_obeyed(context.environ, spec):
            say(unused)
    _announce(record, context, as_json, follow)
    if not (follow or wait):
        return ExitCode.DONE
    from clusterrun.cli.follow_run import follow_to_end

    return follow_to_end(context, record, follow)


def warn_misplaced(spec: JobSpec, verb: str) -> None:
    """Warn of our options after the script. They are passed to the script."""
    from clusterrun.script.checks import misplaced

    option_names = {name for parameter in submit.params for name in parameter.opts if name.startswith("--")}
    if astray := misplaced(spec.command, spec.cwd, option_names):
        names = ", ".join(astray)
        say(f"warning: {names} after {spec.command[0]} goes to the script; options of {verb} stand before it")


def dry(spec: JobSpec, context: Context, as_json: bool) -> int:
    """Print the submission without submitting it."""
    from clusterrun.operations.submit import draft

    preview = draft(spec, context)
    plan = preview.plan
    say(*dict.fromkeys(preview.notices))
    if as_json:
        document = _document(plan.run_id, "", plan.run_dir, plan.spec)
        print(SUBMISSION.json({**document, **_planned(plan)}))
        return ExitCode.DONE
    from clusterrun.script.containers import description
    from clusterrun.script.requeue_options import described

    details = []
    python = plan.orders.interpreter
    if python.path and not python.by_setup:
        details.append(f"ranks run in {python}")
    if plan.orders.container.image:
        details.append(description(plan.orders.container))
    if plan.cpus:
        details.append(f"CPUs per rank: {plan.cpus}")
    details += described(plan.spec)
    say(f"would submit {_description(plan.spec)}\nrun directory {plan.run_dir}", *details)
    say(f"would run {shlex.join(plan.argv)}\nwith this script:")
    print(plan.script, end="")
    return ExitCode.DONE


def _announce(record: RunRecord, context: Context, as_json: bool, follow: bool) -> None:
    kind = "job" if record.cluster == Cluster.SLURM.value else "process"
    if follow:
        say(f"run {record.run_id}")  # stdout is for what the ranks print
    say(f"submitted {_description(record.spec)}: {kind} {record.job_id}")
    if as_json:
        run_dir = context.store.paths(record.run_id).run_dir
        put(SUBMISSION.json(_document(record.run_id, record.job_id, run_dir, record.spec)))
    elif not follow:
        put(record.run_id)
    if follow:
        say("Ctrl-C detaches: the run continues")
        return
    for verb, line in (("follow", "logs -f"), ("look", "status"), ("cancel", "cancel")):
        say(f"  {verb:<7} clusterrun {line} {record.run_id}")


def _description(spec: JobSpec) -> str:
    where = "Slurm" if spec.cluster is Cluster.SLURM else "this machine"
    if spec.per_node:
        nodes = "nodes" if spec.nodes > 1 else "node"
        size = f"{spec.nodes_asked} {nodes}, one process each"
    else:
        size = size_words(spec.nodes, spec.local_size, spec.gpu_type, spec.gpus, spec.min_nodes)
    return f"{spec.name or spec.command[0]} to {where}, {size}"


def _planned(plan: Plan) -> dict[str, Any]:
    notify = [shortened(url) for url in plan.orders.survival.notify]
    survival = {"max_restarts": plan.orders.max_restarts, **fields(plan.orders.survival), "notify": notify}
    python = fields(plan.orders.interpreter)
    container = {"container": encode(plan.orders.container)} if plan.orders.container.image else {}
    return {"python": python, "script": plan.script, "argv": plan.argv, "survival": survival, **container}


def _document(run_id: str, job_id: str, run_dir: str, spec: JobSpec) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "job_id": job_id,
        "name": spec.name,
        "cluster": spec.cluster.value,
        "run_dir": run_dir,
        "command": list(spec.command),
    }


PYTHON = View(
    "The ranks' interpreter.",
    ViewField("path", "Its path; empty where the job finds it."),
    ViewField("why", "The reason for the choice."),
    ViewField("by_setup", "The job looks for it after the lines of `--setup`.", BOOLEAN),
    ViewField("before", "`PATH` is compared with this one.", is_required=False),
)
CONTAINER = View(
    "The container of the ranks.",
    ViewField("image", "The image: a path, or a name."),
    ViewField("runtime", "The program that starts it.", one_of(RUNTIMES)),
    ViewField(
        "mounts",
        "All mounts, also those that clusterrun adds.",
        many(
            View(
                "One mount.",
                ViewField("source", "A path of the host."),
                ViewField("target", "The path inside."),
                ViewField("read_only", "It cannot be written inside.", BOOLEAN),
            )
        ),
    ),
)
SUBMISSION = View(
    "The output of `submit --json`, also with `--dry-run`.",
    ViewField("run_id", "The run, as every other command takes it."),
    ViewField("job_id", "Slurm's job, or the process of a local run; empty in a dry run."),
    ViewField("name", "The run's name."),
    ViewField("cluster", "The scheduler of the run.", one_of((Cluster.SLURM, Cluster.LOCAL))),
    ViewField("run_dir", "The run directory."),
    ViewField("command", "COMMAND as it was typed.", many(TEXT, "One word.")),
    ViewField("python", "`--dry-run` only. The ranks' interpreter.", PYTHON, is_required=False),
    ViewField("script", "`--dry-run` only. The batch script; empty for a local run.", is_required=False),
    ViewField(
        "argv",
        "`--dry-run` only. The command that would submit it.",
        many(TEXT, "One word."),
        is_required=False,
    ),
    ViewField(
        "survival", "`--dry-run` only. The budgets of restarts, as they will hold.", OBJECT, is_required=False
    ),
    ViewField(
        "container",
        "`--dry-run` with `--container` only. The container of the ranks.",
        CONTAINER,
        is_required=False,
    ),
)
