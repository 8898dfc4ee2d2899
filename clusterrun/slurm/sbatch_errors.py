"""Interprets error messages of Slurm's programs: what is known then, and what to do."""

from __future__ import annotations

import enum
import re

from clusterrun.model.frozen import frozen


class SbatchAnswer(enum.Enum):
    """What is known of a job after ``sbatch`` has ended."""

    QUEUED = "the job is queued"
    REFUSED = "the controller, or the program itself, refused: nothing was queued"
    ABSENT = "the controller was never reached: nothing was queued"
    OPEN = "the job may or may not be queued"


@frozen
class Refusal:
    """A known refusal by its words; ``offer``: the partition explains it; ``sure``: nothing is queued."""

    words: str
    remedy: str
    offer: bool = False
    sure: bool = True


NEVER_REACHED = (
    "(connect failure)",
    "could not establish a configuration source",
    "unable to process configuration file",
    "no such host",
    "unable to establish controller",
    "encode failed",
)
"""Said before anything was sent."""

LEFT_OPEN = (
    "socket timed out",
    "unable to contact slurm controller",
    "zero bytes were transmitted",
    "communication",
    "connection",
    "broken pipe",
    "transport endpoint",
    "protocol",
    "unexpected message",
    "message receive failure",
    "message send failure",
    "resource temporarily unavailable",
    "operation now in progress",
    "unspecified error",
    "timed out",
    "host",
    "network",
)
"""Said by the way to the controller or back, not by the controller."""

BY_A_RULE = "unspecified error"
"""Said after the words of a site's own rule (a job_submit plug-in) that refuses a job."""

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
    Refusal("dependency", "Slurm may have forgotten the run named by --after: submit without it"),
    Refusal("group not permitted", "name another partition with --partition", offer=True),
    Refusal("access/permission denied", "ask the site's staff whether this user may submit"),
    Refusal("user id", "ask the site's staff whether this user may submit"),
    Refusal("unrecognized option", "see man sbatch for what this site's Slurm knows"),
    Refusal("invalid option", "see man sbatch for what this site's Slurm knows"),
    Refusal("authentication", "munge does not work here: ask the site's staff"),
    Refusal("munge", "munge does not work here: ask the site's staff"),
)

ENDED_ALREADY = ("already completing or completed", "invalid job id")
"""Said by ``scancel`` of a job that needs no cancelling any more."""

_JOB_ID = r"(\d+)(?:;([^\s;]+))?"
_PREFIX = r"^(?:sbatch|squeue|scancel|sinfo|sacct|scontrol|srun): ?(?:error: |fatal: )?"


def job_id(out: str) -> str:
    """The id in what ``sbatch --parsable`` said (``id`` or ``id;cluster``), after a wrapper's words."""
    found = [match for line in out.splitlines() if (match := re.fullmatch(_JOB_ID, line.strip()))]
    return found[-1].group(1) if found else ""


def kind(err: str) -> SbatchAnswer:
    """What is known of a job whose ``sbatch`` failed with these words."""
    said = err.lower()
    if any(words in said for words in NEVER_REACHED):
        return SbatchAnswer.ABSENT
    before, failed, why = said.partition("submission failed:")
    if why.strip() == BY_A_RULE and _of_the_site(before):
        return SbatchAnswer.REFUSED
    if failed and any(words in why for words in LEFT_OPEN):
        return SbatchAnswer.OPEN
    return SbatchAnswer.REFUSED


def _of_the_site(before: str) -> bool:
    """Whether words of a rule stand before the failure; a rule may well speak of a host or the network."""
    open_words = set(LEFT_OPEN) - {"host", "network"}
    *lines, _ = before.splitlines() or [""]
    told = [line for line in lines if line.strip() and not line.startswith("sbatch: warning:")]
    return bool(told) and not any(words in line for line in told for words in open_words)


def refusal(err: str) -> Refusal | None:
    said = err.lower()
    return next((row for row in REFUSALS if row.words in said), None)


def words(err: str) -> str:
    """Slurm's own words in one line, without the names of its programs and without repetition."""
    lines = [re.sub(_PREFIX, "", line.strip()) for line in err.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "no reason given"
