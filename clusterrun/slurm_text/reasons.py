"""Explain Slurm's reasons why a job waits or ended, with remedies."""

from __future__ import annotations

import re

from clusterrun.model.frozen import frozen


@frozen
class JobReason:
    """One reason of Slurm."""

    word: str
    meaning: str  # meaning for users
    remedy: str = ""  # empty if only waiting helps
    never: bool = False  # the job can never start as it is, whatever happens to other jobs and nodes
    # The job waits until somebody releases it: Slurm's estimate of its start means nothing.
    held: bool = False


# The remedy of reasons that concern nodes.
SEE_NODES = "see sinfo -R"
_ASK = "ask the site's staff"
_NOT_LAUNCHED = f"is held: it could not be started on a node, perhaps because its prolog failed: {SEE_NODES}"
_RELEASE = "scontrol release JOB releases it"
_SHORTER = "scontrol show reservation; a shorter --time may fit before it, see clusterrun plan"

REASONS = (
    JobReason("Resources", "waits for nodes to become free"),
    JobReason("Priority", "waits: jobs with a higher priority are ahead"),
    JobReason("Dependency", "waits for the job that it depends on", "scontrol show job JOB names it"),
    JobReason(
        "DependencyNeverSatisfied",
        "the job that it depends on did not end as the dependency requires",
        "clusterrun cancel JOB",
        True,
    ),
    JobReason("BeginTime", "waits for its begin time"),
    JobReason("JobHeldUser", "is held by its owner", _RELEASE, held=True),
    JobReason("JobHeldAdmin", "is held by an administrator, or was requeued too often", _ASK, held=True),
    JobReason("JobHoldMaxRequeue", "is held: it was requeued too often", _RELEASE, held=True),
    JobReason("SystemFailure", "is held after a failure of Slurm or a node", _RELEASE, held=True),
    JobReason("launch failed requeued held", _NOT_LAUNCHED, _RELEASE, held=True),
    JobReason("job requeued in held state", "is held after a requeue", _RELEASE, held=True),
    JobReason(
        "PartitionConfig",
        "it asks for more than the partition has",
        "lower --nodes, --gpus or --cpus-per-rank",
        True,
    ),
    JobReason("PartitionDown", "waits: the partition is down", "choose another with --partition"),
    JobReason("PartitionInactive", "waits: the partition is switched off", "choose another with --partition"),
    JobReason(
        "PartitionNodeLimit",
        "it asks for more or fewer nodes than the partition allows",
        "change --nodes",
        True,
    ),
    JobReason(
        "PartitionTimeLimit", "it asks for more time than the partition allows", "shorten --time", True
    ),
    JobReason("ReqNodeNotAvail", "waits for nodes that are in use, down, drained or reserved", SEE_NODES),
    JobReason(
        "ReqNodeNotAvail, Reserved for maintenance", "waits: maintenance of its nodes is planned", _SHORTER
    ),
    JobReason(
        # Slurm 26.05 does not tell them apart.
        "ReqNodeNotAvail, May be reserved for other job",
        "waits for nodes that are reserved for others, down or drained",
        f"{SEE_NODES}; {_SHORTER}",
    ),
    JobReason(
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "waits for nodes that are down, drained, or reserved for partitions with a higher priority",
        SEE_NODES,
    ),
    JobReason("NodeDown", "a node it needs is down", SEE_NODES),
    JobReason(
        "BadConstraints",
        "it asks for what no node has",
        "change --constraint, --gpus, --mem, --nodelist or --exclude",
        True,
    ),
    JobReason("Licenses", "waits for a licence"),
    JobReason("Reservation", "waits for its reservation to begin"),
    JobReason(
        "ReservationDeleted", "its reservation was deleted", "cancel it, submit without --reservation", True
    ),
    JobReason("InvalidAccount", "its account is not valid", "name a valid one with --account", True),
    JobReason("InvalidQOS", "its quality of service is not valid", "name a valid one with --qos", True),
    JobReason(
        "AccountNotAllowed", "its account may not use the partition", "change --account or --partition", True
    ),
    JobReason("QOSNotAllowed", "its QOS is not allowed there", "change --qos or --partition", True),
    JobReason("AccountingPolicy", "waits: a limit of its account is reached"),
    JobReason("QOSUsageThreshold", "waits: its account has used up what this QOS allows"),
    JobReason("FrontEndDown", "waits: a front-end node is down"),
    JobReason("BurstBufferResources", "waits for burst-buffer space"),
    JobReason("BurstBufferStageIn", "waits: its files are being copied in"),
    JobReason("JobArrayTaskLimit", "waits: its array allows no more tasks at once"),
    JobReason("Cleaning", "Slurm is still clearing up its last start"),
    JobReason("Prolog", "its nodes are being made ready (prolog)"),
    JobReason("NodesStarting", "its nodes are being powered up"),
    JobReason("SchedDefer", "waits for Slurm's next round of scheduling"),
    JobReason("NonZeroExitCode", "ended with an exit code other than 0"),
    JobReason("TimeLimit", "its time limit was reached", "give it more with --time"),
    JobReason("InactiveLimit", "Slurm saw it idle for too long"),
    JobReason(
        "JobLaunchFailure",
        "its script could not start, or was killed",
        "see job.out in the run directory, if the node could write there",
    ),
    JobReason("RaisedSignal", "was ended by a signal"),
    JobReason("OutOfMemory", "a process was killed for lack of memory", "ask for more with --mem"),
    JobReason("DeadLine", "its deadline passed or cannot be met"),
    JobReason("MaxMemPerLimit", "it asks for more memory than is allowed", "lower --mem", True),
    JobReason("NodeFailure", "a node was lost"),
    JobReason("FedJobLock", "waits for the other clusters of the federation"),
)

# scontrol writes a space as _.
_TABLE = {word: reason for reason in REASONS for word in (reason.word, reason.word.replace(" ", "_"))}
_NOTHING = ("", "None", "null", "N/A")
_DETAILS = r"[,:][\s_]*"
_BRACKETED = r"\(([^()]*)\)$"
_LIMIT = r"(Assoc|QOS)(Grp|Max|Min)?\w*"


def explain(word: str) -> JobReason:
    """Return the row of a reason as ``squeue`` prints it. An unknown reason is shown unchanged.

    Details are kept: ``ReqNodeNotAvail, UnavailableNodes:n1``, ``RaisedSignal:9(Killed)``.
    """
    text = word.strip()
    text = text[1:-1] if text[:1] == "(" and text[-1:] == ")" else text
    if text in _NOTHING:
        return JobReason(text, "")
    if text in _TABLE:
        return _TABLE[text]
    head, *details = re.split(_DETAILS, text, maxsplit=1)
    if head in _TABLE and details:
        row = _TABLE[head]
        detail = re.sub(_BRACKETED, r": \1", details[0])
        return JobReason(text, f"{row.meaning} ({detail})", row.remedy, row.never, row.held)
    match = re.fullmatch(_LIMIT, text)
    return _limit(match) if match else JobReason(text, f"Slurm says: {text}")


def _limit(match: re.Match[str]) -> JobReason:
    """Return the meaning of one of Slurm's many limits.

    Limits are of an account (Assoc) or of a quality of service (QOS).
    """
    whose = "your account" if match.group(1) == "Assoc" else "its QOS"
    if match.group(2) == "Min":
        meaning = f"it asks for less than {whose} requires ({match.group()})"
        return JobReason(match.group(), meaning, "ask for more", True)
    if "PerJob" in match.group() or "PerNode" in match.group():
        meaning = f"it asks for more than {whose} allows one job ({match.group()})"
        return JobReason(match.group(), meaning, "ask for less", True)
    shared = "all jobs together under " if match.group(2) == "Grp" else ""
    return JobReason(match.group(), f"waits: {shared}{whose} may not use more now ({match.group()})")
