"""`clusterrun diagnose`: prints the verdict on a run as text or JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import json_option, runs
from clusterrun.cli.terminal import renew_line
from clusterrun.diagnosis.hypothesis import certainty_in_words
from clusterrun.diagnosis.stacks import function_of, is_library, line_of, short
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Stacks, Verdict, ranks_in_words, unfolded
from clusterrun.model import hostlist
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput, NoSuchRun
from clusterrun.model.frozen import fields, replace
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.operations.diagnose import LIMIT
from clusterrun.operations.diagnose import diagnose as diagnosed
from clusterrun.operations.find_run import find_run_or_job
from clusterrun.reports.view import BOOLEAN, INTEGER, TEXT, View, ViewField, any_of, many

if TYPE_CHECKING:
    from clusterrun.diagnosis.log_process import LogError
    from clusterrun.slurm.foreign_job import ForeignJob

# Tasks of an array that a message names.
MOST_TASKS = 8

CULPRIT = View(
    "A rank, node or link that is to blame.",
    ViewField("rank", "-1 for a node or a link.", INTEGER),
    ViewField("node", "The node."),
    ViewField("why", "The fault."),
)


def _place(log_error: LogError) -> tuple[str, int]:
    file, _, number = line_of(log_error.error.frame).rpartition(":")
    return file, int(number) if number.isdecimal() else 0


LOG_FILE = View(
    "A log file.",
    ViewField("path", "The file; `stdin` for standard input."),
    ViewField("size", "Its bytes.", INTEGER),
    ViewField("read", "Bytes of which every line was read.", INTEGER),
    ViewField("scanned", "Bytes that were only searched for errors.", INTEGER),
    ViewField("skipped", "Bytes that were not read.", INTEGER),
)
LOG_ERROR = View(
    "An error in the log.",
    ViewField("rank", "The rank that printed it; -1 if the log does not show it.", INTEGER),
    ViewField("node", "The node of the rank; empty if the log does not show it."),
    ViewField("text", "The error as it was printed.", TEXT, lambda log_error: log_error.error.text),
    ViewField(
        "file",
        "The file of the user's code; empty without one.",
        TEXT,
        lambda log_error: _place(log_error)[0],
    ),
    ViewField(
        "line", "The line in that file; 0 without one.", INTEGER, lambda log_error: _place(log_error)[1]
    ),
    ViewField("function", "The function.", TEXT, lambda log_error: function_of(log_error.error.frame)),
    ViewField(
        "is_consequence",
        "Whether the rank only noticed the end of another one.",
        BOOLEAN,
        lambda log_error: log_error.error.is_consequence,
    ),
)
LOG_DIAGNOSIS = View(
    "The output of `diagnose --log --json`.",
    ViewField("files", "The files, in the order in which they were read.", many(LOG_FILE)),
    ViewField("verdict", "One of the [verdicts](diagnose.md#the-verdicts)."),
    ViewField("message", "The verdict as a sentence.", former="said"),
    ViewField("culprits", "Empty if nothing is blamed.", many(CULPRIT)),
    ViewField("errors", "At most 64 errors, in the order of the lines.", many(LOG_ERROR)),
    ViewField("more_errors", "Errors beyond these.", INTEGER),
    ViewField(
        "evidence", "The facts that lead to the verdict, and what was not read.", many(TEXT, "A sentence.")
    ),
    ViewField("remedy", "The next step for the user."),
)


FRAMES = 8
MOST_SOURCE = 4 << 20
MOST_LINE = 100


DIAGNOSIS = View(
    "The output of `diagnose --json`.",
    ViewField("run_id", "The run, or the Slurm job that clusterrun did not start."),
    ViewField(
        "verdict",
        "One of the [verdicts](diagnose.md#the-verdicts).",
        read=lambda document: document["verdict"].value,
    ),
    ViewField("message", "The verdict as a sentence.", former="said"),
    ViewField("culprits", "Empty if nothing is blamed.", many(CULPRIT)),
    ViewField(
        "groups",
        "All stacks.",
        many(
            View(
                "Ranks in the same place.",
                ViewField(
                    "ranks", "Their ranks.", many(INTEGER, "A rank."), lambda stacks: unfolded(stacks.ranks)
                ),
                ViewField(
                    "stack", "Innermost first.", many(any_of("string", "object", "array"), "One frame.")
                ),
            )
        ),
    ),
    ViewField(
        "certainty",
        "Of the rule that decided, from 0 to 100; 0 if it is unknown.",
        INTEGER,
        is_required=False,
    ),
    ViewField("evidence", "The facts that lead to the verdict.", many(TEXT, "A sentence.")),
    ViewField("remedy", "The next step for the user."),
)


@click.command()
@json_option
@click.option(
    "--limit", metavar="TIME", help=f"Look at a live run or job for at most this long ({LIMIT:.0f}s)."
)
@click.option("--user", default="", metavar="NAME", help="For root: the user whose Slurm job it is.")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", help="Read log files of any job instead; - is stdin."
)
@click.argument("names", nargs=-1, metavar="[RUN]", shell_complete=runs)
def diagnose(
    names: tuple[str, ...], as_json: bool, limit: str | None, user: str, logs: tuple[str, ...]
) -> int:
    """Explain why RUN hangs or has failed: the culprit rank and node, with the evidence.

    It looks into the ranks of a live run without stopping them. If the run has ended, it reads the records
    and logs of its ranks. RUN may be the number of any Slurm job of yours, or its name if squeue knows it.
    --log finds the first failure in the output of any job: files, quoted globs, directories.
    The exit code is 1 if the verdict is undetermined, else 0.

    \b
    Examples:
      clusterrun diagnose
      clusterrun diagnose last --json
      clusterrun diagnose --limit 2m
      clusterrun diagnose 4711
      clusterrun diagnose --log slurm-4711.out
    """
    if logs:
        if limit or user:
            raise BadInput("--log reads files, so --limit and --user mean nothing", "leave these options out")
        from clusterrun.operations.diagnose_log import diagnose_logs  # only for logs of any job

        report = diagnose_logs((*logs, *names), sys.stdin.buffer, time.monotonic, renew_line)
        values = {**fields(report.diagnosis), **fields(report), "verdict": report.diagnosis.verdict.value}
        return _printed(report.diagnosis, LOG_DIAGNOSIS.document(values) if as_json else None)
    if len(names) > 1:
        raise BadInput(f"{', '.join(names)} are several runs", "name one run; several files follow --log")
    context = Context()
    seconds = float(parse(limit)) if limit else LIMIT
    name = names[0] if names else "last"
    try:
        target = find_run_or_job(context, name, say)
    except NoSuchRun as error:
        if not os.path.isfile(name):
            raise
        message = f"{name} is a file, and no run has this name"
        raise BadInput(message, f"clusterrun diagnose --log {shlex.quote(name)}") from error
    if isinstance(target, str):
        if user:
            raise BadInput(f"{target} is a run of yours, and --user is for Slurm jobs", "leave --user out")
        name, diagnosis = target, diagnosed(context, target, seconds, say)
    else:
        name, diagnosis = target.job_id, _of_job(context, target, seconds, user)
    return _printed(diagnosis, document(name, diagnosis) if as_json else None)


def _printed(diagnosis: Diagnosis, members: dict[str, object] | None) -> int:
    """Print ``members`` as JSON, without them the diagnosis as text. Return the exit code."""
    if members is None:
        print("\n".join(visible(line) for line in lines(diagnosis)))
    else:
        print(json.dumps(members, indent=1))
    return ExitCode.FAILED if diagnosis.verdict is Verdict.UNDETERMINED else ExitCode.DONE


def _of_job(context: Context, job: ForeignJob, seconds: float, user: str) -> Diagnosis:
    """Return the diagnosis of a job that clusterrun did not start. It may end during the look."""
    from clusterrun.operations.diagnose_job import diagnose_job  # only jobs of others need these
    from clusterrun.operations.diagnose_log import diagnose_ended_job
    from clusterrun.operations.job_step import JobEnded

    if not job.state.ended:
        try:
            return _with_tasks(diagnose_job(context, job, seconds, say, user), job)
        except JobEnded as error:
            say(f"{error.seen}: this is what its output says")
            job = context.client().foreign_job(job.job_id) or job
    return _with_tasks(diagnose_ended_job(context, job, renew_line, user), job)


def _with_tasks(diagnosis: Diagnosis, job: ForeignJob) -> Diagnosis:
    """Add the states of all tasks, if ``job`` is one of an array that the user named as a whole."""
    if not job.tasks:
        return diagnosis
    count = Counter(word for _, word in job.tasks)
    states = ", ".join(f"{number} {word}" for word, number in sorted(count.items()))
    note = f"this is task {job.job_id} of the array, whose tasks are: {states}"
    others = [task for task, word in job.tasks if word == job.word and task != job.job_id]
    if others and job.word != "COMPLETED":
        note += f"; also {job.word}: {' '.join(others[:MOST_TASKS])}"
    return replace(diagnosis, evidence=(*diagnosis.evidence, note))


def document(run_id: str, diagnosis: Diagnosis) -> dict[str, object]:
    return DIAGNOSIS.document({"run_id": run_id, **fields(diagnosis)})


def lines(diagnosis: Diagnosis) -> list[str]:
    lines_shown = [f"{diagnosis.verdict.value}: {diagnosis.message}"]
    many = "s" if len(diagnosis.culprits) > 1 else ""
    culprits = _culprits(diagnosis)
    lines_shown += _part(f"culprit{many}", culprits)
    certainty = certainty_in_words(diagnosis.certainty, diagnosis.verdict is Verdict.CRASHED)
    is_shown = certainty and diagnosis.verdict is not Verdict.NOTHING
    lines_shown += _part("certainty", [certainty] if is_shown else [])
    lines_shown += _part("evidence", list(diagnosis.evidence))
    lines_shown += _part("stacks", [line for group in diagnosis.groups for line in _stack(group)])
    return lines_shown + _part("remedy", [diagnosis.remedy] if diagnosis.remedy else [])


def _culprits(diagnosis: Diagnosis) -> list[str]:
    """Return a line for the culprits of each reason, without a reason that the page's first line gives."""
    groups: dict[tuple[str, bool, bool], list[Culprit]] = {}
    for culprit in diagnosis.culprits:
        key = (culprit.why, culprit.rank >= 0, bool(culprit.node))
        groups.setdefault(key, []).append(culprit)
    lines_shown = []
    for (why, has_rank, _), group in groups.items():
        ranks = ranks_in_words(culprit.rank for culprit in group) if has_rank else ""
        nodes = hostlist.fold(tuple(dict.fromkeys(culprit.node for culprit in group)))
        place = " on ".join(filter(None, (ranks, nodes)))
        reason = "" if place and why in diagnosis.message else why
        if len(group) > 1 and reason.startswith("it "):
            reason = f"each {reason[3:]}"
        lines_shown.append(": ".join(filter(None, (place, reason))))
    return lines_shown


def _part(name: str, items: list[str]) -> list[str]:
    return ["", name, *(f"  {item}" for item in items)] if items else []


def _stack(group: Stacks) -> list[str]:
    count = len(unfolded(group.ranks))
    heading = f"rank {group.ranks}" if count == 1 else f"{count} ranks: {group.ranks}"
    if not group.stack:
        return [heading, "    no Python stack could be read"]
    stack = [frame for frame in group.stack if "<frozen importlib" not in frame]
    # The script's frames say more than those of libraries.
    places = sorted(range(len(stack)), key=lambda place: is_library(stack[place]))
    shown = sorted(places[:FRAMES])
    lines_shown = [heading]
    for place, following in zip(shown, [*shown[1:], len(stack)]):
        frame = stack[place]
        text = "" if is_library(frame) else source(frame)
        lines_shown.append(f"    {short(frame)}" + (f"   {text}" if text else ""))
        hidden = following - place - 1
        lines_shown += [f"    … {hidden} more"] if hidden else []
    return lines_shown


@cache
def source(frame: str) -> str:
    """Return the source line of a frame, '' if this machine cannot read the file."""
    path, _, number = line_of(frame).rpartition(":")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, encoding="utf-8", errors="replace") as file:
            source_lines = file.read(MOST_SOURCE).splitlines()
        return source_lines[int(number) - 1].strip()[:MOST_LINE]
    except (OSError, ValueError, IndexError):
        return ""
