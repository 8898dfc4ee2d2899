"""Interpret the error messages of Slurm's programs: what is certain about the job, and what to do."""

from __future__ import annotations

import enum
import re

from clusterrun.model.frozen import frozen


class SbatchAnswer(enum.Enum):
    """How certain it is, after ``sbatch`` has ended, that a job exists."""

    QUEUED = "the job is queued"
    REFUSED = "the controller, or the program itself, refused: nothing was queued"
    ABSENT = "the controller was never reached: nothing was queued"
    OPEN = "the job may or may not be queued"


@frozen
class Refusal:
    """A refusal recognized by its text."""

    phrase: str  # part of Slurm's message, in lower case
    remedy: str
    offer: bool = False  # list the partition's limits with it
    sure: bool = True  # no job is queued


# Messages of a program that could not send anything.
NEVER_REACHED = (
    "(connect failure)",
    "could not establish a configuration source",
    "unable to process configuration file",
    "no such host",
    "unable to establish controller",
    "encode failed",
)

# Errors on the way to the controller or back, not from the controller.
LEFT_OPEN = (
    *("socket timed out", "unable to contact slurm controller", "zero bytes were transmitted"),
    *("communication", "connection", "broken pipe", "transport endpoint", "protocol", "unexpected message"),
    *("message receive failure", "message send failure", "resource temporarily unavailable"),
    *("operation now in progress", "unspecified error", "timed out", "host", "network"),
)

# Follows the text of a site's own rule (a job_submit plug-in) that refuses a job.
BY_A_RULE = "unspecified error"

_OBEY = "a rule of this site refuses the job: do what its words ask for"
REFUSALS = (
    Refusal(BY_A_RULE, _OBEY, sure=False),
    Refusal("cli_filter plugin", _OBEY),
    Refusal(
        "accounting/qos policy",
        "a limit of your account or QOS: see sacctmgr show assoc user=$USER, and sacctmgr show qos",
    ),
    Refusal("time limit specification required", "say how long it may take: --time 2h", offer=True),
    Refusal("invalid partition", "name a partition that exists with --partition", offer=True),
    Refusal("no partition specified", "name a partition with --partition", offer=True),
    Refusal("invalid account", "see yours: sacctmgr show assoc user=$USER format=account,partition,qos"),
    Refusal("invalid qos", "see yours: sacctmgr show assoc user=$USER format=account,partition,qos"),
    Refusal(
        "invalid generic resource",
        "change --gpus: a number, or a type and a number, as h100:8; where Slurm knows of no GPU, add"
        " --gpus-from node",
        offer=True,
    ),
    Refusal(
        "requested node configuration",
        "lower --nodes, --gpus, --cpus-per-rank or --mem, or ease --constraint, --exclude or --nodelist",
        offer=True,
    ),
    Refusal("requested partition configuration", "change --nodes or --partition", offer=True),
    Refusal("node count specification", "change --nodes", offer=True),
    Refusal("more processors requested", "lower --cpus-per-rank", offer=True),
    Refusal("cpu count", "lower --cpus-per-rank", offer=True),
    Refusal("memory specification", "lower --mem, or leave it out", offer=True),
    Refusal("memory required", "lower --mem, or leave it out", offer=True),
    Refusal("--time specification", "change --time"),
    Refusal("time limit", "change --time", offer=True),
    Refusal("invalid feature", "see what there is: sinfo -o '%P %f'"),
    Refusal("reservation", "see what there is: scontrol show reservation"),
    Refusal("invalid node name", "see what there is: sinfo -N"),
    Refusal(
        "dependency",
        "--sbatch dependency takes Slurm's job ids, and --after runs; Slurm forgets jobs that ended long ago",
    ),
    Refusal("group not permitted", "name another partition with --partition", offer=True),
    Refusal("access/permission denied", "ask the site's staff whether this user may submit"),
    Refusal("user id", "ask the site's staff whether this user may submit"),
    Refusal("unrecognized option", "see man sbatch for what this site's Slurm knows"),
    Refusal("invalid option", "see man sbatch for what this site's Slurm knows"),
    Refusal("authentication", "munge does not work here: ask the site's staff"),
    Refusal("munge", "munge does not work here: ask the site's staff"),
)

# Messages of ``scancel`` for a job that has already ended.
ENDED_ALREADY = ("already completing or completed", "invalid job id")

_JOB_ID = r"(\d+)(?:;([^\s;]+))?"
_PREFIX = r"^(?:sbatch|squeue|scancel|sinfo|sacct|scontrol|srun): ?(?:error: |fatal: )?"


def job_id(out: str) -> str:
    """Return the id in the output of ``sbatch --parsable`` (``id`` or ``id;cluster``).

    A wrapper may print before it.
    """
    matches = [match for line in out.splitlines() if (match := re.fullmatch(_JOB_ID, line.strip()))]
    return matches[-1].group(1) if matches else ""


def kind(err: str) -> SbatchAnswer:
    """Return what is certain about a job whose ``sbatch`` failed with this message."""
    message = err.lower()
    if any(phrase in message for phrase in NEVER_REACHED):
        return SbatchAnswer.ABSENT
    before, failed, why = message.partition("submission failed:")
    if why.strip() == BY_A_RULE and _of_the_site(before):
        return SbatchAnswer.REFUSED
    if failed and any(phrase in why for phrase in LEFT_OPEN):
        return SbatchAnswer.OPEN
    return SbatchAnswer.REFUSED


def _of_the_site(before: str) -> bool:
    """Return whether a site's rule wrote text before the failure.

    Its text may mention a host or the network.
    """
    open_words = set(LEFT_OPEN) - {"host", "network"}
    *lines, _ = before.splitlines() or [""]
    messages = [line for line in lines if line.strip() and not line.startswith("sbatch: warning:")]
    return bool(messages) and not any(phrase in line for line in messages for phrase in open_words)


def refusal(err: str) -> Refusal | None:
    message = err.lower()
    return next((row for row in REFUSALS if row.phrase in message), None)


def words(err: str) -> str:
    """Return Slurm's messages in one line, without program names and repetitions."""
    lines = [re.sub(_PREFIX, "", line.strip()) for line in err.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "no reason given"
