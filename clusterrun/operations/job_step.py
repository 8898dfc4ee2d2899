"""Run a step beside the ranks of a Slurm job that clusterrun did not start, within a time limit."""

from __future__ import annotations

import base64
import json
import os
import pwd
import shlex
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TypeVar

from clusterrun import system
from clusterrun.model import contract
from clusterrun.model.document import BadDocument, decode
from clusterrun.model.errors import BadInput, ClusterrunError, SchedulerError
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.script.environment import scrubbed
from clusterrun.slurm.foreign_job import ForeignJob
from clusterrun.slurm_text import job_states
from clusterrun.slurm_text.reasons import explain

T = TypeVar("T")
# The start of each line with a value of a node.
MARK = "clusterrun-look "
# Seconds for Slurm to grant the step. It shares the job's resources, so it waits for no other step.
IMMEDIATE_SECONDS = 10
# Nodes in the commands for ssh.
MOST_LISTED = 8
_NO_OVERLAP = ("unrecognized option", "invalid option", "unknown option")
_NO_PLACE = (
    "requested nodes are busy",
    "unable to create step",
    "memory required by task",
    "immediate execution impossible",
    "step creation temporarily disabled",
    "requested node configuration is not available",
    "unable to allocate resources",
    "task launch for",
)
_HARMLESS = "lacks support for cpu binding"
_REFUSED = ("access/permission denied", "invalid user", "security violation", "user not allowed")
_OVER = ("invalid job id", "already complet", "job/step already", "expired", "invalid job/step id")


@frozen
class StepAnswer:
    """The output of a step."""

    out: str
    err: str
    code: int
    late: float = 0.0  # its time limit in seconds if it was ended then


class JobEnded(BadInput):
    """The job has ended since it was found."""


class NotPlaced(SchedulerError):
    """Slurm cannot place a step beside the job."""


def user_name() -> str:
    """Return the name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def check_owner(job: ForeignJob, user: str = "") -> None:
    """Raise ``BadInput`` if the job is of somebody else. ``user``: the owner whom an administrator named."""
    me = user_name()
    owner = job.user or me
    if user and user != owner:
        raise BadInput(f"job {job.job_id} is of {owner}, not of {user}", f"give --user {owner}, or none")
    if owner != me and (os.geteuid() != 0 or not user):
        raise BadInput(f"job {job.job_id} ({job.name!r}) is of {owner}, and you are {me}", owner_remedy(job))


def owner_remedy(job: ForeignJob) -> str:
    """Return what this user may do about a job of somebody else; '' for a job of this user."""
    if job.user in ("", user_name()):
        return ""
    if os.geteuid() == 0:
        return f"look at it: clusterrun diagnose --user {job.user} {job.job_id}"
    return f"ask {job.user}, or root; scontrol show job {job.job_id} shows its state"


def check_live(job: ForeignJob, user: str = "") -> tuple[str, ...]:
    """Return the nodes of a running job. Raise ``BadInput`` if it does not run, or as ``check_owner``."""
    check_owner(job, user)
    if "COMPLETING" in job.word:
        raise JobEnded(f"job {job.job_id} has ended, and Slurm is clearing its nodes", _reads_output(job))
    if len(job.running_tasks) > 1:
        array, tasks = job.job_id.partition("_")[0], " ".join(job.running_tasks[:8])
        raise BadInput(f"{array} is an array, and several of its tasks run", f"name one of them: {tasks}")
    if job.state is not State.RUNNING or job.word in job_states.HALTED or not job.nodelist:
        remedy = _reads_output(job) if job.state.ended else f"scontrol show job {job.job_id} says more"
        meaning = explain(job.reason).meaning if job.state is State.PENDING else ""
        meaning = meaning or job_states.read(job.word).meaning
        why = f" ({meaning})" if meaning else ""
        raise BadInput(f"job {job.job_id} ({job.name!r}) does not run now: it is {job.word}{why}", remedy)
    return expand(job.nodelist)


def _reads_output(job: ForeignJob) -> str:
    return f"clusterrun diagnose {job.job_id} reads its output"


def step_argv(
    context: Context,
    job: ForeignJob,
    nodes: Sequence[str],
    program: Sequence[str],
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the srun arguments that run ``program`` once on each of ``nodes`` beside the job's ranks."""
    share = () if context.client().shares_gpus() else ("--gres=none",)
    argv = ["srun", f"--jobid={job.number or job.job_id}"]
    for group, nodelist in enumerate(job.het_nodelists or (job.nodelist,)):
        members = [node for node in nodes if node in expand(nodelist)] if nodelist else []
        if not members:
            continue
        argv += [
            *([":"] if len(argv) > 2 else []),
            *([f"--het-group={group}"] if job.het_nodelists else []),
            "--overlap",
            f"--immediate={IMMEDIATE_SECONDS}",
            f"--nodelist={','.join(members)}",
            f"--nodes={len(members)}",
            f"--ntasks={len(members)}",
            "--ntasks-per-node=1",
            *context.client().step_options(),
            *share,
            *options,
            *program,
        ]
    return tuple(argv)


def program_argv(program: str, *arguments: str) -> tuple[str, ...]:
    """Return the arguments that run the program for nodes by this Python, or by theirs if it is absent."""
    script = 'p="$1"; shift; [ -x "$p" ] || p=python3; exec "$p" -I -S "$@"'
    return ("/bin/sh", "-c", script, "clusterrun", sys.executable, program, *arguments)


def step_environment(context: Context) -> dict[str, str]:
    """Return the environment of a step beside a job. A mark tells its processes from the job's own."""
    return {**scrubbed(context.environ), contract.BESIDE_VARIABLE: "1"}


def input_argv(*arguments: str) -> tuple[str, ...]:
    """Return the arguments that run the program for nodes from standard input, in a temporary file."""
    script = 'f=$(mktemp) && cat >"$f" || exit 1; p="$1"; shift; [ -x "$p" ] || p=python3; '
    script += '"$p" -I -S "$f" "$@" </dev/null; c=$?; rm -f "$f"; exit $c'
    return ("/bin/sh", "-c", script, "clusterrun", sys.executable, *arguments)


def run_step(
    context: Context, argv: Sequence[str], seconds: float, stdin: str | IO[bytes] = ""
) -> StepAnswer:
    """Run a step. After ``seconds`` it is ended, and its output so far is the answer."""
    try:
        completed = system.run(argv, seconds, stdin, step_environment(context))
    except system.ProgramTimeout as error:
        return StepAnswer(error.out, error.err, -1, late=seconds)
    except system.ProgramMissing as error:
        raise SchedulerError(error.seen, "type this on a login node of the cluster") from error
    return StepAnswer(completed.out, completed.err, completed.code)


def looks_in(out: str, kind: type[T]) -> list[T]:
    """Return the values in the output of a step, in order. Damaged ones are left out."""
    parts: dict[str, list[str]] = {}
    values = []
    for line in out.splitlines():
        cells = line.split(" ")
        if not line.startswith(MARK) or len(cells) != 5:
            continue
        _, node, place, count, data = cells
        if place == "0":
            parts[node] = []
        parts.setdefault(node, []).append(data)
        if not count.isdecimal() or len(parts[node]) != int(count):
            continue
        with suppress(ValueError, zlib.error, BadDocument, RecursionError):
            text = zlib.decompress(base64.b64decode("".join(parts[node])))
            values.append(decode(kind, json.loads(text)))
    return values


def refusal(context: Context, job: ForeignJob, answer: StepAnswer, nodes: Sequence[str]) -> ClusterrunError:
    """Return the error of a step that has answered nothing: why it could not be placed, and what to do."""
    text = answer.err.lower()
    lines = [line for line in answer.err.strip().splitlines() if line.strip() and _HARMLESS not in line]
    message = (lines[0] if lines else "").removeprefix("srun: ").removeprefix("error: ")

    def mentions(phrases: Sequence[str]) -> bool:
        return any(phrase in text for phrase in phrases)

    if mentions(_REFUSED):
        return BadInput(
            f"Slurm does not permit a step in job {job.job_id}: {message}", "is it a job of yours?"
        )
    if mentions(_OVER) or _has_ended(context, job):
        return JobEnded(f"job {job.job_id} has ended meanwhile", _reads_output(job))
    if mentions(_NO_OVERLAP):
        why = "this Slurm has no --overlap (it came with 20.11), so no step starts beside the job's own"
    elif mentions(_NO_PLACE):
        why = f"Slurm places no step beside those of job {job.job_id}: {message}"
    elif answer.late:
        why = f"no node of job {job.job_id} has answered within {answer.late:.0f} s"
        why += f"; srun says: {message}" if message else ""
    else:
        why = f"the step in job {job.job_id} failed: {message or f'exit code {answer.code}'}"
    return NotPlaced(why, by_ssh(nodes))


def _has_ended(context: Context, job: ForeignJob) -> bool:
    try:
        now = context.client().foreign_job(job.job_id)
    except ClusterrunError:
        return False
    return now is None or now.state.ended or "COMPLETING" in now.word


def by_ssh(nodes: Sequence[str]) -> str:
    """Return the commands that show the same over ssh, for sites that permit it."""
    listed = " ".join(map(shlex.quote, nodes[:MOST_LISTED]))
    limit = f" (for the first {MOST_LISTED} of {len(nodes)} nodes)" if len(nodes) > MOST_LISTED else ""
    look = "for p in $(pgrep -u $USER python); do py-spy dump --pid $p; done"
    loop = f"for n in {listed}; do echo == $n; ssh $n '{look}'; done"
    return f"over ssh, where the site permits it{limit}:\n  {loop}"
